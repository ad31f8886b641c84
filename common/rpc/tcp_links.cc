#include "common/rpc/tcp_links.h"

#include <dirent.h>
// Not netinet/tcp.h, whose struct tcp_info ends before what is wanted here.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/descriptor.h"
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

}  // namespace

absl::StatusOr<SocketBuffers> ReadSocketBuffers(FileSystem& file_system,
                                                const std::string& folder) {
  SocketBuffers buffers;
  ASSIGN_OR_RETURN(buffers.send, ReadRange(file_system, JoinPath(folder, kSendSetting)));
  ASSIGN_OR_RETURN(buffers.receive, ReadRange(file_system, JoinPath(folder, kReceiveSetting)));
  return buffers;
}

BufferVerdict JudgeBuffer(int64_t largest, const MeasuredDirection& measured) {
  BufferVerdict verdict;
  verdict.bandwidth_delay_bytes = measured.bytes_per_second * absl::ToDoubleSeconds(measured.rtt);
  const int connections = std::max(1, measured.connections);
  verdict.window_bytes = static_cast<double>(largest) * kPayloadShare * connections;
  verdict.binds = verdict.bandwidth_delay_bytes >= kNear * verdict.window_bytes &&
                  verdict.bandwidth_delay_bytes > 0 && largest > 0;
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

std::string BufferWarning(absl::string_view setting, const BufferRange& range,
                          const MeasuredDirection& measured, absl::string_view where) {
  const BufferVerdict verdict = JudgeBuffer(range.largest, measured);
  if (!verdict.binds) return "";
  return absl::StrFormat(
      "%s%s runs at %.0f of the at most %.0f Mbit/s that %d connection%s with buffers of %.1f MiB "
      "can carry at a round trip of %.0f ms: if the link has more, run `sysctl -w "
      "net.ipv4.%s='%d %d %d'` as root%s, or use more connections",
      setting == kSendSetting ? "sending" : "receiving", where, measured.bytes_per_second * 8e-6,
      verdict.window_bytes / absl::ToDoubleSeconds(measured.rtt) * 8e-6, measured.connections,
      measured.connections == 1 ? "" : "s", static_cast<double>(range.largest) / (1 << 20),
      absl::ToDoubleMilliseconds(measured.rtt), setting, range.smallest, range.initial,
      verdict.wanted_bytes, where);
}

std::string SocketBufferWarning(const SocketBuffers& buffers, const MeasuredDirection& up,
                                const MeasuredDirection& down) {
  const std::string sending = BufferWarning(kSendSetting, buffers.send, up);
  const std::string receiving = BufferWarning(kReceiveSetting, buffers.receive, down);
  return absl::StrCat(sending, sending.empty() || receiving.empty() ? "" : "; ", receiving);
}

namespace {

constexpr size_t kMaxNameBytes = 16;  // TCP_CA_NAME_MAX of the kernel.
constexpr int kTcpRtoMaxMs = 44;      // TCP_RTO_MAX_MS, which Debian's headers do not know.
constexpr absl::Duration kTcpsOwnPause = absl::Seconds(120);
// The window of a shorter link is never what limits it.
constexpr absl::Duration kLongRtt = absl::Milliseconds(5);
// From here on windows are what limits a link, however many connections it has.
constexpr absl::Duration kVeryLongRtt = absl::Milliseconds(200);
// Below this share of lost bytes a connection seldom waits for a segment; above the other one it is
// not the link that loses them but a queue that overflows.
constexpr double kSomeLosses = 3e-4;
constexpr double kManyLosses = 1e-2;
// A share is of so many bytes at least.
constexpr double kTellingBytes = 4 << 20;
constexpr double kSegmentBytes = 1448;  // The usual payload.
constexpr double kKeptPerLook = 0.8;

void ForEachDescriptor(const std::function<void(int)>& visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  if (folder == nullptr) return;
  for (const dirent* entry = readdir(folder.get()); entry != nullptr;
       entry = readdir(folder.get())) {
    int descriptor = -1;
    if (absl::SimpleAtoi(entry->d_name, &descriptor)) visit(descriptor);
  }
}

using NameCall = int (*)(int, sockaddr*, socklen_t*);

std::optional<TcpAddress> AddressBy(NameCall call, int descriptor) {
  sockaddr_storage storage = {};
  socklen_t length = sizeof(storage);
  if (call(descriptor, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return std::nullopt;
  return FromSocketAddress(storage);
}

bool IsListening(int descriptor) {
  int listening = 0;
  socklen_t length = sizeof(listening);
  return getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) == 0 &&
         listening != 0;
}

std::string CongestionControlOf(int descriptor) {
  char name[kMaxNameBytes + 1] = {};
  socklen_t length = kMaxNameBytes;
  if (getsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name, &length) != 0) return "";
  return name;
}

// 0, or the error.
int SetOn(int descriptor, absl::string_view name) {
  const auto length = static_cast<socklen_t>(name.size());
  return setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name.data(), length) == 0 ? 0 : errno;
}

// A socket that is connected to nothing, to ask the kernel with.
OwnedDescriptor SpareSocket() {
  OwnedDescriptor spare(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!spare.valid()) spare.Reset(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return spare;
}

// Kernels give as much of it as they know: what is missing stays zero.
bool ReadInfo(int descriptor, TcpConnection& connection) {
  tcp_info info = {};
  socklen_t length = sizeof(info);
  if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  connection.rtt = absl::Microseconds(info.tcpi_rtt);
  const bool has_min_rtt = info.tcpi_min_rtt != ~uint32_t{0};  // Else none was measured.
  connection.min_rtt = has_min_rtt ? absl::Microseconds(info.tcpi_min_rtt) : absl::ZeroDuration();
  connection.retransmitted_segments = info.tcpi_total_retrans;
  connection.sent_bytes = static_cast<int64_t>(info.tcpi_bytes_acked);
  connection.received_bytes = static_cast<int64_t>(info.tcpi_bytes_received);
  connection.delivery_bytes_per_second = static_cast<double>(info.tcpi_delivery_rate);
  connection.congestion_window_bytes = int64_t{info.tcpi_snd_cwnd} * info.tcpi_snd_mss;
  connection.congestion_control = CongestionControlOf(descriptor);
  return true;
}

void ForEachConnection(const WantedConnection& wanted,
                       const std::function<void(int, const TcpConnection&)>& visit) {
  ForEachDescriptor([&](int descriptor) {
    TcpConnection connection;
    const std::optional<TcpAddress> peer = AddressBy(getpeername, descriptor);
    if (!peer.has_value()) return;
    const std::optional<TcpAddress> local = AddressBy(getsockname, descriptor);
    if (!local.has_value()) return;
    connection.peer = *peer;
    connection.local = *local;
    if (wanted(connection) && ReadInfo(descriptor, connection)) visit(descriptor, connection);
  });
}

bool Contains(std::span<const TcpAddress> addresses, const TcpAddress& address) {
  return std::ranges::find(addresses, address) != addresses.end();
}

void AddCounters(const TcpFigures& from, TcpFigures& to) {
  to.retransmitted_segments += from.retransmitted_segments;
  to.sent_bytes += from.sent_bytes;
  to.received_bytes += from.received_bytes;
}

// Returns how many of the sockets that are `wanted` had another.
int SetWhere(const std::string& name, const std::function<bool(int descriptor)>& wanted) {
  int changed = 0;
  if (name.empty()) return changed;
  ForEachDescriptor([&](int descriptor) {
    if (!wanted(descriptor) || CongestionControlOf(descriptor) == name) return;
    if (SetOn(descriptor, name) == 0) ++changed;
  });
  return changed;
}

bool SameEnds(const TcpConnection& a, const TcpConnection& b) {
  return a.local == b.local && a.peer == b.peer;
}

}  // namespace

WantedConnection To(std::span<const TcpAddress> peers) {
  return [peers](const TcpConnection& connection) { return Contains(peers, connection.peer); };
}

WantedConnection AcceptedOn(int local_port) {
  return
      [local_port](const TcpConnection& connection) { return connection.local.port == local_port; };
}

std::vector<TcpConnection> Connections(const WantedConnection& wanted) {
  std::vector<TcpConnection> found;
  ForEachConnection(wanted,
                    [&](int, const TcpConnection& connection) { found.push_back(connection); });
  return found;
}

TcpLink Summarize(std::span<const TcpConnection> connections) {
  TcpLink link;
  absl::Duration sum;
  int measured = 0;
  std::set<std::string> controls;
  for (const TcpConnection& connection : connections) {
    ++link.connections;
    if (connection.rtt > absl::ZeroDuration()) {
      sum += connection.rtt;
      ++measured;
    }
    if (connection.min_rtt > absl::ZeroDuration() &&
        (link.min_rtt == absl::ZeroDuration() || connection.min_rtt < link.min_rtt)) {
      link.min_rtt = connection.min_rtt;
    }
    AddCounters(connection, link);
    link.delivery_bytes_per_second += connection.delivery_bytes_per_second;
    link.congestion_window_bytes += connection.congestion_window_bytes;
    if (!connection.congestion_control.empty()) controls.insert(connection.congestion_control);
  }
  if (measured > 0) link.rtt = sum / measured;
  link.congestion_control = absl::StrJoin(controls, ", ");
  return link;
}

absl::Status CanUseCongestionControl(absl::string_view name) {
  if (name.empty() || name.size() >= kMaxNameBytes) {
    return absl::NotFoundError(absl::StrCat("\"", name.substr(0, 64),
                                            "\" names no congestion control; see "
                                            "net.ipv4.tcp_available_congestion_control"));
  }
  const OwnedDescriptor spare = SpareSocket();
  if (!spare.valid()) {
    return absl::UnavailableError(absl::StrCat("no socket to try: ", std::strerror(errno)));
  }
  const int error = SetOn(spare.get(), name);
  if (error == 0) return absl::OkStatus();
  if (error == EPERM) {
    return absl::PermissionDeniedError(absl::StrCat(
        name, " is not among net.ipv4.tcp_allowed_congestion_control: add it there as root"));
  }
  if (error == ENOENT) {
    return absl::NotFoundError(absl::StrCat("this kernel has not loaded ", name,
                                            ": run `modprobe tcp_", name, "` as root, or use ",
                                            "a kernel that has it"));
  }
  return absl::UnavailableError(
      absl::StrCat("the kernel refuses ", name, ": ", std::strerror(error)));
}

std::string DefaultCongestionControl() {
  const OwnedDescriptor spare = SpareSocket();
  return spare.valid() ? CongestionControlOf(spare.get()) : "";
}

std::string DescribeCongestionControl(const std::string& chosen) {
  if (!chosen.empty()) return chosen;
  const std::string system = DefaultCongestionControl();
  const absl::Status bbr = CanUseCongestionControl("bbr");
  return absl::StrCat(system.empty() ? "unknown" : system, ", the system's",
                      bbr.ok() || system == "bbr" ? "" : absl::StrCat(" (", bbr.message(), ")"));
}

absl::StatusOr<std::string> ChooseCongestionControl(absl::string_view flag) {
  if (flag == "system") return std::string();
  if (flag == "auto") return std::string(CanUseCongestionControl("bbr").ok() ? "bbr" : "");
  const absl::Status usable = CanUseCongestionControl(flag);
  if (usable.ok()) return std::string(flag);
  return absl::FailedPreconditionError(
      absl::StrCat("--congestion_control=", flag.substr(0, 64), ": ", usable.message()));
}

int SetCongestionControl(std::span<const TcpAddress> peers, const std::string& name) {
  if (peers.empty()) return 0;
  return SetWhere(name, [&](int descriptor) {
    const std::optional<TcpAddress> peer = AddressBy(getpeername, descriptor);
    return peer.has_value() && Contains(peers, *peer);
  });
}

int SetCongestionControlOfListeners(int local_port, const std::string& name) {
  return SetWhere(name, [&](int descriptor) {
    const std::optional<TcpAddress> local = AddressBy(getsockname, descriptor);
    return local.has_value() && local->port == local_port && IsListening(descriptor);
  });
}

TcpLink TcpLinkTotals::Update(std::vector<TcpConnection> now) {
  for (const TcpConnection& before : live_) {
    const auto same = std::ranges::find_if(now, [&](const TcpConnection& connection) {
      // A port may be used again by a new connection, whose counters start at zero.
      return SameEnds(connection, before) && connection.sent_bytes >= before.sent_bytes &&
             connection.received_bytes >= before.received_bytes;
    });
    if (same != now.end()) continue;
    AddCounters(before, ended_);
  }
  live_ = std::move(now);
  TcpLink link = Summarize(live_);
  AddCounters(ended_, link);
  return link;
}

double TcpLosses::ResentShare(const TcpConnection& now) {
  const auto same = std::ranges::find_if(connections_, [&](const Sent& sent) {
    return sent.local == now.local && sent.peer == now.peer && sent.bytes <= now.sent_bytes;
  });
  Sent& sent = same != connections_.end()
                   ? *same
                   : connections_.emplace_back(Sent{.local = now.local, .peer = now.peer});
  if (now.sent_bytes > sent.bytes) {
    const auto resent = static_cast<double>(now.retransmitted_segments - sent.resent_segments);
    sent.recent_bytes *= kKeptPerLook;
    sent.recent_bytes += static_cast<double>(now.sent_bytes - sent.bytes);
    sent.recent_resent *= kKeptPerLook;
    sent.recent_resent += kSegmentBytes * resent;
  }
  sent.bytes = now.sent_bytes;
  sent.resent_segments = now.retransmitted_segments;
  sent.seen = true;
  return sent.recent_bytes < kTellingBytes ? 0 : sent.recent_resent / sent.recent_bytes;
}

void TcpLosses::ForgetOthers() {
  std::erase_if(connections_, [](const Sent& sent) { return !sent.seen; });
  for (Sent& sent : connections_) sent.seen = false;
}

int64_t WindowBound(const TcpConnection& connection, double resent_share,
                    const SocketBuffers& buffers) {
  const bool is_long = connection.min_rtt >= kLongRtt && connection.min_rtt < kVeryLongRtt;
  if (!is_long || connection.congestion_control != "bbr") return 0;
  const bool loses = resent_share > kSomeLosses && resent_share < kManyLosses;
  return loses ? buffers.send.largest : buffers.window_bytes();
}

int BoundConnections(const WantedConnection& wanted, TcpLosses& losses) {
  const absl::StatusOr<SocketBuffers> buffers = ReadSocketBuffers(*FileSystem::Real());
  int bounded = 0;
  ForEachConnection(wanted, [&](int descriptor, const TcpConnection& connection) {
    const absl::Duration pause = std::clamp(4 * connection.rtt, kLongestRetryPause, kTcpsOwnPause);
    const int pause_ms = static_cast<int>(absl::ToInt64Milliseconds(pause));
    bounded += setsockopt(descriptor, IPPROTO_TCP, kTcpRtoMaxMs, &pause_ms, sizeof(pause_ms)) == 0;
    const double resent_share = losses.ResentShare(connection);
    const int window =
        buffers.ok() ? static_cast<int>(WindowBound(connection, resent_share, *buffers)) : 0;
    if (window == 0) return;
    setsockopt(descriptor, IPPROTO_TCP, TCP_WINDOW_CLAMP, &window, sizeof(window));
  });
  losses.ForgetOthers();
  return bounded;
}

TcpLink TcpLinkMeter::Sample() {
  SetCongestionControl(peers_, congestion_control_);
  BoundConnections(To(peers_), losses_);
  return totals_.Update(Connections(To(peers_)));
}

}  // namespace causeway
