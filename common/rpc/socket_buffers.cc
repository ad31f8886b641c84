#include "common/rpc/tcp_links.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace causeway {
namespace {

// A rate this near to what the windows permit was held down by them, give or take what slow start
// and pauses cost.
constexpr double kNear = 0.75;
// The kernel's own overhead: see above.
constexpr double kPayloadShare = 0.5;
constexpr int64_t kLargestAdvice = int64_t{1} << 30;

absl::StatusOr<BufferRange> ReadRange(FileSystem& file_system, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, file_system.ReadFile(path));
  const std::vector<std::string> numbers =
      absl::StrSplit(text, absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
  BufferRange range;
  if (numbers.size() != 3 || !absl::SimpleAtoi(numbers[0], &range.smallest) ||
      !absl::SimpleAtoi(numbers[1], &range.initial) ||
      !absl::SimpleAtoi(numbers[2], &range.largest) || range.largest <= 0) {
    return absl::NotFoundError(
        absl::StrCat(path, ": expected three numbers, got \"", text.substr(0, 100), "\""));
  }
  return range;
}

std::string Bind(absl::string_view direction, absl::string_view name, const BufferRange& range,
                 const MeasuredDirection& measured) {
  const BufferVerdict verdict = JudgeBuffer(range.largest, measured);
  if (!verdict.binds) return "";
  return absl::StrFormat(
      "%s runs at %.0f of the at most %.0f Mbit/s that %d connection%s with buffers of %.1f MiB "
      "can "
      "carry at a round trip of %.0f ms: if the link has more, run `%s` as root, or use more "
      "connections",
      direction, measured.bytes_per_second * 8e-6,
      verdict.window_bytes / absl::ToDoubleSeconds(measured.rtt) * 8e-6, measured.connections,
      measured.connections == 1 ? "" : "s", static_cast<double>(range.largest) / (1 << 20),
      absl::ToDoubleMilliseconds(measured.rtt), SysctlLine(name, range, verdict.wanted_bytes));
}

}  // namespace

absl::StatusOr<SocketBuffers> ReadSocketBuffers(FileSystem& file_system,
                                                const std::string& folder) {
  SocketBuffers buffers;
  ASSIGN_OR_RETURN(buffers.send, ReadRange(file_system, JoinPath(folder, "tcp_wmem")));
  ASSIGN_OR_RETURN(buffers.receive, ReadRange(file_system, JoinPath(folder, "tcp_rmem")));
  return buffers;
}

BufferVerdict JudgeBuffer(int64_t largest, const MeasuredDirection& measured) {
  BufferVerdict verdict;
  verdict.bandwidth_delay_bytes = measured.bytes_per_second * absl::ToDoubleSeconds(measured.rtt);
  const int connections = std::max(1, measured.connections);
  verdict.window_bytes = static_cast<double>(largest) * kPayloadShare * connections;
  verdict.binds = verdict.bandwidth_delay_bytes >= kNear * verdict.window_bytes &&
                  verdict.bandwidth_delay_bytes > 0;
  if (verdict.binds) {
    // Nobody knows yet what the link carries beyond: twice what was seen, and at least twice what
    // there is, in a power of two.
    const double wanted = std::max(2 * verdict.bandwidth_delay_bytes / kPayloadShare / connections,
                                   2 * static_cast<double>(largest));
    verdict.wanted_bytes = int64_t{1} << 20;
    while (static_cast<double>(verdict.wanted_bytes) < wanted &&
           verdict.wanted_bytes < kLargestAdvice) {
      verdict.wanted_bytes *= 2;
    }
  }
  return verdict;
}

std::string SysctlLine(absl::string_view name, const BufferRange& range, int64_t wanted_bytes) {
  return absl::StrCat("sysctl -w net.ipv4.", name, "='", range.smallest, " ", range.initial, " ",
                      wanted_bytes, "'");
}

std::string SocketBufferWarning(const SocketBuffers& buffers, const MeasuredDirection& up,
                                const MeasuredDirection& down) {
  const std::string sending = Bind("sending", "tcp_wmem", buffers.send, up);
  const std::string receiving = Bind("receiving", "tcp_rmem", buffers.receive, down);
  return absl::StrCat(sending, sending.empty() || receiving.empty() ? "" : "; ", receiving);
}

}  // namespace causeway
