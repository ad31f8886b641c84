// Reads what TCP knows about this process's connections: round-trip times, retransmissions, rates.
//
// gRPC gives no access to its sockets, so they are looked for: every descriptor in /proc/self/fd
// that is a connected TCP socket with the wanted peer or local port. A descriptor may be closed, or
// become another socket, between two system calls. That is harmless. Everything is read from one
// descriptor after its peer was; at worst one connection's figures are reported under the name of
// another for one sample. At worst a congestion control or a bound is chosen for another
// TCP connection of this process; for anything that is no TCP socket the system refuses it. Nothing
// is written, shut down or duplicated. Without /proc there are no connections.
//
// A walk takes a few microseconds for every descriptor. Thread-safe, except the two classes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/file_system.h"
#include "common/rpc/tcp_address.h"

namespace causeway {

// Whether the system's limits of TCP's buffers let a long link be full.
//
// gRPC leaves the sizes of socket buffers to the kernel, which grows them up to the third number of
// net.ipv4.tcp_wmem (sending) and net.ipv4.tcp_rmem (receiving). About half of it holds payload, so
// one connection carries at most half its limit in every round trip, and n connections n times
// that. What a link needs is its bandwidth-delay product.

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

inline constexpr char kSendSetting[] = "tcp_wmem";
inline constexpr char kReceiveSetting[] = "tcp_rmem";
// A line for people if that setting binds that direction, otherwise empty: what was measured, and
// what to run. `where`: " at the coordinator"; empty: here.
std::string BufferWarning(absl::string_view setting, const BufferRange& range,
                          const MeasuredDirection& measured, absl::string_view where = "");

// The same of both directions and this machine. What is wrong at the peer is not seen from here.
std::string SocketBufferWarning(const SocketBuffers& buffers, const MeasuredDirection& up,
                                const MeasuredDirection& down);

// Figures of the kernel at this end (TCP_INFO). Zero: not measured.
struct TcpFigures {
  absl::Duration rtt;      // Smoothed; includes the peer's delayed acknowledgements and all queues.
  absl::Duration min_rtt;  // The smallest of the last minutes: the link alone.
  int64_t retransmitted_segments = 0;
  int64_t sent_bytes = 0;  // Acknowledged by the peer.
  int64_t received_bytes = 0;
  double delivery_bytes_per_second = 0;  // At which data was acknowledged lately.
  int64_t congestion_window_bytes = 0;
  std::string congestion_control;  // "bbr", or "bbr, cubic" of connections that differ.
};

// One established connection.
struct TcpConnection : TcpFigures {
  TcpAddress local;
  TcpAddress peer;
};

// All connections between two machines together: the mean of their round-trip times, the smallest
// of the smallest, and the sums of all else.
struct TcpLink : TcpFigures {
  int connections = 0;
};

// Which of this process's connections are meant, by their ends.
using WantedConnection = std::function<bool(const TcpConnection&)>;
// Those to one of these addresses (see ResolveAddress), which outlive the result.
WantedConnection To(std::span<const TcpAddress> peers);
// Those that were accepted on this local port.
WantedConnection AcceptedOn(int local_port);

std::vector<TcpConnection> Connections(const WantedConnection& wanted);

TcpLink Summarize(std::span<const TcpConnection> connections);

// --- Congestion control ---
// A long link that loses packets now and then needs BBR: with 0.1 % loss at 100 ms, CUBIC and Reno
// carry a few Mbit/s per connection, whatever the link could.

// Reads a flag --congestion_control: "auto" is bbr where this process may use it, otherwise
// the system's default; "system" leaves the default; any other name must be usable. Returns the
// name to set, empty to leave the default. FAILED_PRECONDITION says how to make it usable.
absl::StatusOr<std::string> ChooseCongestionControl(absl::string_view flag);
// OK if this process may set it on its sockets; NOT_FOUND if the kernel has no such module,
// PERMISSION_DENIED if it is not allowed. Both say what to do.
absl::Status CanUseCongestionControl(absl::string_view name);
// The algorithm a new socket starts with; empty if the kernel does not say.
std::string DefaultCongestionControl();
// For the log, of what ChooseCongestionControl chose: "bbr", or "cubic, the system's (...)".
std::string DescribeCongestionControl(const std::string& chosen);

// Sets it for the connections to these addresses that have another; returns how many were changed.
// An empty name changes nothing. A connection may be switched at any time.
int SetCongestionControl(std::span<const TcpAddress> peers, const std::string& name);
// Sets it for the sockets that listen on this port: what they accept from then on inherits it.
int SetCongestionControlOfListeners(int local_port, const std::string& name);

// --- Bounds ---
// Windows. BBR learns a link's rate only while a connection has more to send than is under way.
// Where the send buffer is what limits it, it never has, with gRPC's way to write: BBR goes on at
// the rate of its first second, several times too much, and the queues on the way overflow. So
// BBR connections of 5 to 200 ms announce a window that is smaller than the peer's buffer. Those of
// longer links need all that the kernel gives, and so do those that lose packets: what follows a
// lost segment fills the window until the segment comes again, and then something is left to send.
//
// Retries. TCP doubles the pause before every try to reach the other end again, up to two minutes:
// a link that was black for 12 s would stand unused until the 19th. From Linux 6.15 on it can be
// told how long the pause may become; older kernels leave it as it is.

// A link that is back carries again so soon, or within four of its round trips if that is longer:
// queues may be deep, and a try before the answer can have come would only fill them more.
inline constexpr absl::Duration kLongestRetryPause = absl::Seconds(1);  // The least it takes.

// How much of what connections sent lately TCP sent again. Not thread-safe.
class TcpLosses {
 public:
  // Returns the share of the connection's bytes, over about five calls in which it sent something;
  // 0 until it has sent enough to tell. Call it about once a second.
  double ResentShare(const TcpConnection& now);
  // Forgets connections that ResentShare was not called for since the last time.
  void ForgetOthers();

 private:
  struct Sent {
    TcpAddress local;
    TcpAddress peer;
    int64_t bytes = 0;  // In all, as of the last call.
    int64_t resent_segments = 0;
    double recent_bytes = 0;
    double recent_resent = 0;  // Bytes.
    bool seen = true;
  };
  std::vector<Sent> connections_;
};

// The window that such a connection is to announce at most, in bytes; 0: it keeps the kernel's.
int64_t WindowBound(const TcpConnection& connection, double resent_share,
                    const SocketBuffers& buffers);

// Bounds these connections as they are now; returns how many have their pauses bounded. Call it
// about once a second, with the same `losses`.
int BoundConnections(const WantedConnection& wanted, TcpLosses& losses);

// The figures of a link across connections that come and go. Not thread-safe.
class TcpLinkTotals {
 public:
  // `now` are the link's present connections. Counters of the result include those of connections
  // that have ended, as of the last update that had them; all else is of the present ones.
  TcpLink Update(std::vector<TcpConnection> now);

 private:
  std::vector<TcpConnection> live_;
  TcpFigures ended_;  // Counters alone.
};

// The same of this process's connections to these addresses, since the meter was made. New
// connections get the congestion control, and all the bounds above. Not
// thread-safe.
class TcpLinkMeter {
 public:
  // An empty `congestion_control` leaves them as they are.
  TcpLinkMeter(std::vector<TcpAddress> peers, std::string congestion_control)
      : peers_(std::move(peers)), congestion_control_(std::move(congestion_control)) {}

  TcpLink Sample();

 private:
  const std::vector<TcpAddress> peers_;
  const std::string congestion_control_;
  TcpLinkTotals totals_;
  TcpLosses losses_;
};

}  // namespace causeway
