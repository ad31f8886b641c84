#include "common/client/reach.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/match.h"
#include "common/base/descriptor.h"
#include "common/base/text.h"
#include "common/client/session.h"
#include "common/rpc/tcp_stream.h"
#include "common/rpc/tls_handshake.h"
#include "common/telemetry/log.h"

namespace causeway {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(3);

// HTTP/2's preface and an empty SETTINGS frame.
constexpr absl::string_view kHttp2Hello("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
constexpr size_t kFrameHeaderBytes = 9;

class Socket {
 public:
  explicit Socket(const TcpAddress& address) {
    const socklen_t length = ToSocketAddress(address, storage_);
    descriptor_.Reset(socket(storage_.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!descriptor_.valid() ||
        connect(descriptor_.get(), reinterpret_cast<const sockaddr*>(&storage_), length) != 0) {
      error_ = errno;
    }
  }

  int descriptor() const { return descriptor_.get(); }
  bool pending() const { return error_ == EINPROGRESS; }
  int error() const { return error_; }
  // To be called once it is writable.
  void Settle() {
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(descriptor_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    error_ = error;
  }

 private:
  sockaddr_storage storage_ = {};
  OwnedDescriptor descriptor_;
  int error_ = 0;  // EINPROGRESS while it connects.
};

int MillisecondsUntil(absl::Time deadline) {
  return static_cast<int>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(deadline - absl::Now()) + 1, 0, 60'000));
}

}  // namespace

std::vector<ConnectAttempt> ConnectToAll(std::span<const TcpAddress> addresses,
                                         absl::Duration timeout) {
  const absl::Time start = absl::Now();
  std::vector<Socket> sockets;
  std::vector<ConnectAttempt> attempts;
  for (const TcpAddress& address : addresses) {
    sockets.emplace_back(address);
    attempts.push_back({address, absl::OkStatus(), absl::Now() - start});
  }
  for (;;) {
    std::vector<pollfd> waiting;
    std::vector<size_t> at;
    for (size_t i = 0; i < sockets.size(); ++i) {
      if (!sockets[i].pending()) continue;
      waiting.push_back({sockets[i].descriptor(), POLLOUT, 0});
      at.push_back(i);
    }
    const int left = MillisecondsUntil(start + timeout);
    if (waiting.empty() || absl::Now() >= start + timeout) break;
    if (poll(waiting.data(), waiting.size(), left) <= 0) continue;
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].revents == 0) continue;
      sockets[at[i]].Settle();
      attempts[at[i]].time = absl::Now() - start;
    }
  }
  for (size_t i = 0; i < sockets.size(); ++i) {
    attempts[i].status = ConnectError(sockets[i].error());
  }
  return attempts;
}

Greeting ClassifyGreeting(absl::string_view received, bool closed) {
  if (received.empty()) return closed ? Greeting::kClosed : Greeting::kSilent;
  // A frame header: 3 bytes of length, type 4 (SETTINGS), flags, stream 0.
  if (received.size() >= kFrameHeaderBytes && received[0] == 0 && received[3] == 4 &&
      received.substr(5, 4) == absl::string_view("\0\0\0\0", 4)) {
    return Greeting::kHttp2;
  }
  if (absl::StartsWith(received, "HTTP/1.")) return Greeting::kHttp1;
  // A TLS alert, or a handshake message.
  if (received.size() >= 2 && (received[0] == 0x15 || received[0] == 0x16) && received[1] == 3) {
    return Greeting::kTls;
  }
  return Greeting::kOther;
}

Greeting Greet(const TcpAddress& address, absl::Duration timeout) {
  absl::StatusOr<TcpStream> connection = TcpStream::Open(address, absl::Now() + timeout);
  if (!connection.ok()) return ClassifyGreeting("", !absl::IsDeadlineExceeded(connection.status()));
  std::string received;
  bool open = connection->Send(kHttp2Hello);
  while (open && received.size() < kFrameHeaderBytes) {
    std::array<char, 64> buffer;
    const ssize_t got = connection->Receive(buffer.data(), buffer.size());
    if (got < 0 && connection->late()) break;
    open = got > 0;
    if (open) received.append(buffer.data(), static_cast<size_t>(got));
  }
  return ClassifyGreeting(received, !open);
}

Obstacle ObstacleOf(const ProxySetting& proxy, const absl::Status& tunnel) {
  if (!proxy.used || tunnel.ok()) return {};
  return {std::string(tunnel.message()), proxy.remedy};
}

Obstacle ObstacleOf(std::span<const ConnectAttempt> attempts) {
  std::string failed;
  bool refused = false;
  bool silent = false;
  for (const ConnectAttempt& attempt : attempts) {
    if (attempt.status.ok()) return {};
    refused |= attempt.status.message() == kRefusesConnection;
    silent |= absl::IsDeadlineExceeded(attempt.status);
    absl::StrAppend(&failed, failed.empty() ? "" : ", ", attempt.address.ToString(), " ",
                    attempt.status.message());
  }
  return {failed, refused ? "nothing listens there: is causeway-coordinator running, with --listen "
                            "on an address that this site reaches, and is the address right?"
                  : silent ? "check the address, and that firewalls on both sides let this port "
                             "through"
                           : "check this machine's network and routes"};
}

Obstacle ObstacleOf(const std::string& address, Greeting greeting, bool speaks_tls) {
  if (greeting == Greeting::kHttp2) return {};
  if (speaks_tls || greeting == Greeting::kTls) {
    return {absl::StrCat(address, " wants TLS, and this site has none"),
            "give --tls_ca, and --tls_cert and --tls_key or --token_file: the coordinator's "
            "operator hands them out"};
  }
  const std::string remedy =
      "another program has this port: check the address against the coordinator's log line "
      "\"listens on\"";
  switch (greeting) {
    case Greeting::kHttp1:
      return {absl::StrCat(address, " is a web server, not a coordinator"), remedy};
    case Greeting::kClosed:
      return {absl::StrCat(address, " hangs up at once"), remedy};
    case Greeting::kSilent:
      return {absl::StrCat(address, " accepts connections and says nothing"),
              absl::StrCat(remedy, "; or the coordinator hangs")};
    default:
      return {absl::StrCat(address, " speaks another protocol"), remedy};
  }
}

std::string ExplainNoAnswer(const std::string& address, bool uses_tls,
                            const ReadVariable& variable) {
  const absl::StatusOr<std::vector<TcpAddress>> places = ResolveAddress(address);
  const absl::StatusOr<HostPort> host_port = SplitHostPort(address, /*allow_any_port=*/false);
  if (!host_port.ok()) return "";
  const ProxySetting proxy = FindProxy(
      host_port->host, places.ok() ? std::span(*places) : std::span<const TcpAddress>(), variable);
  const auto say = [&](const Obstacle& obstacle) {
    return absl::StrCat(obstacle.finding, ": ", obstacle.remedy,
                        proxy.hint.empty() ? "" : absl::StrCat(". ", proxy.hint));
  };
  if (proxy.used) {
    const Obstacle obstacle =
        ObstacleOf(proxy, DialThrough(proxy, address, absl::Now() + kTimeout).status());
    return say(obstacle.finding.empty() ? Obstacle{proxy.finding, proxy.remedy} : obstacle);
  }
  if (!places.ok()) return "";  // The name is what is wrong, and its message says so.
  const std::vector<ConnectAttempt> attempts = ConnectToAll(*places, kTimeout);
  const auto connected = std::ranges::find_if(
      attempts, [](const ConnectAttempt& attempt) { return attempt.status.ok(); });
  if (connected == attempts.end()) return say(ObstacleOf(attempts));
  if (uses_tls) return "";
  const Obstacle obstacle = ObstacleOf(address, Greet(connected->address, kTimeout),
                                       /*speaks_tls=*/false);
  return obstacle.finding.empty() ? "" : say(obstacle);
}

namespace {

// A coordinator that is up answers sooner; whether TLS is what keeps it silent is worth a look.
constexpr absl::Duration kExplainAfter = absl::Seconds(5);
constexpr absl::Duration kExplainTimeout = absl::Seconds(5);

}  // namespace

absl::StatusOr<v1::DescribeResponse> DescribeOrExplain(v1::Session::StubInterface& stub,
                                                       const std::string& coordinator,
                                                       const SecurityOptions& security,
                                                       absl::Duration timeout,
                                                       absl::string_view region_id,
                                                       const std::function<bool()>& stop) {
  const absl::Duration first = std::min(timeout, kExplainAfter);
  absl::StatusOr<v1::DescribeResponse> description =
      DescribeRun(stub, coordinator, first, absl::ZeroDuration(), region_id, stop);
  if (!absl::IsUnavailable(description.status())) return description;
  ASSIGN_OR_RETURN(const std::vector<std::string> addresses, SplitAddresses(coordinator));
  RETURN_IF_ERROR(ExplainByTls(addresses.front(), security, kExplainTimeout));
  if (timeout > first) {
    description = DescribeRun(stub, coordinator, timeout - first, first, region_id, stop);
  }
  if (!absl::IsUnavailable(description.status())) return description;
  const std::string why = ExplainNoAnswer(addresses.front(), security.UsesTls(), ReadEnvironment);
  if (why.empty()) return description;
  return absl::UnavailableError(absl::StrCat("no coordinator answers at ", coordinator, " within ",
                                             absl::FormatDuration(timeout), ": ", why));
}

void LogSecurity(const ChannelSecurity& security) {
  for (const std::string& warning : security.warnings) Log().warn("{}", warning);
  if (security.files == nullptr) return;
  security.files->ReportTo([](const CertificateNotice& notice) {
    if (notice.fit) {
      Log().info("{}", notice.message);
    } else {
      Log().warn("{}", notice.message);
    }
  });
}

}  // namespace causeway
