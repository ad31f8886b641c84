// Whether the system's limits of TCP's buffers let a long link be full.
//
// gRPC leaves the sizes of socket buffers to the kernel, which grows them up to the third number of
// net.ipv4.tcp_wmem (sending) and net.ipv4.tcp_rmem (receiving). About half of it holds payload, so
// one connection carries at most half its limit in every round trip, and n connections n times
// that. What a link needs is its bandwidth-delay product.
#ifndef CAUSEWAY_COMMON_RPC_SOCKET_BUFFERS_H_
#define CAUSEWAY_COMMON_RPC_SOCKET_BUFFERS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/file_system.h"

namespace causeway {

// The three numbers of tcp_wmem or tcp_rmem, in bytes.
struct BufferRange {
  int64_t smallest = 0;
  int64_t initial = 0;
  int64_t largest = 0;
};

struct SocketBuffers {
  BufferRange send;     // tcp_wmem
  BufferRange receive;  // tcp_rmem

  // Upper bound of the window that a connection announces (tcp_links.h), if the peer's buffers are
  // as large as these: Linux lets more be written when a third of the send buffer is free, and some
  // of the rest is then still to be sent.
  int64_t window_bytes() const { return send.largest / 16 * 9; }
};

// Reads the limits of this process's network namespace. NOT_FOUND where the kernel does not say.
absl::StatusOr<SocketBuffers> ReadSocketBuffers(FileSystem& file_system,
                                                const std::string& folder = "/proc/sys/net/ipv4");

// One direction of a link, as it was measured.
struct MeasuredDirection {
  double bytes_per_second = 0;
  absl::Duration rtt;
  int connections = 1;
};

struct BufferVerdict {
  double bandwidth_delay_bytes = 0;
  double window_bytes = 0;  // All connections together.
  // The windows are what the measured rate came up against, so the link may carry more.
  bool binds = false;
  // The largest buffer that would leave room to spare; 0 unless `binds`.
  int64_t wanted_bytes = 0;
};

// `largest` as in BufferRange. What was not measured (a rate or a time of 0) binds nothing.
BufferVerdict JudgeBuffer(int64_t largest, const MeasuredDirection& measured);

// "sysctl -w net.ipv4.tcp_wmem='4096 16384 67108864'", for a `name` of tcp_wmem or tcp_rmem.
std::string SysctlLine(absl::string_view name, const BufferRange& range, int64_t wanted_bytes);

// One line for the log if this machine's buffers bind either direction, otherwise empty: which,
// what was measured, and what to run. What is wrong at the peer is not seen from here.
std::string SocketBufferWarning(const SocketBuffers& buffers, const MeasuredDirection& up,
                                const MeasuredDirection& down);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_RPC_SOCKET_BUFFERS_H_
