#include "common/client/reach.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/text.h"
#include "common/client/session.h"
#include "common/rpc/tls_handshake.h"
#include "common/telemetry/log.h"

namespace causeway {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(3);
constexpr char kRefuses[] = "refuses the connection";

// HTTP/2's preface and an empty SETTINGS frame.
constexpr absl::string_view kHttp2Hello("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
constexpr size_t kFrameHeaderBytes = 9;
constexpr size_t kMostAnswerBytes = 4096;

class Socket {
 public:
  explicit Socket(const TcpAddress& address) {
    const socklen_t length = ToSocketAddress(address, storage_);
    descriptor_ = socket(storage_.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor_ < 0) {
      error_ = errno;
    } else if (connect(descriptor_, reinterpret_cast<const sockaddr*>(&storage_), length) != 0) {
      error_ = errno;
    }
  }
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Socket(Socket&& other) noexcept
      : storage_(other.storage_), descriptor_(other.descriptor_), error_(other.error_) {
    other.descriptor_ = -1;
  }
  Socket& operator=(Socket&&) = delete;

  int descriptor() const { return descriptor_; }
  bool pending() const { return error_ == EINPROGRESS; }
  int error() const { return error_; }
  // To be called once it is writable.
  void Settle() {
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &error, &length);
    error_ = error;
  }

 private:
  sockaddr_storage storage_ = {};
  int descriptor_ = -1;
  int error_ = 0;  // EINPROGRESS while it connects.
};

absl::Status ConnectError(int error) {
  if (error == 0) return absl::OkStatus();
  if (error == EINPROGRESS || error == ETIMEDOUT) {
    return absl::DeadlineExceededError("does not answer");
  }
  if (error == ECONNREFUSED) return absl::UnavailableError(kRefuses);
  return absl::UnavailableError(absl::AsciiStrToLower(std::strerror(error)));
}

int MillisecondsUntil(absl::Time deadline) {
  return static_cast<int>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(deadline - absl::Now()) + 1, 0, 60'000));
}

// Sends a text once the socket is connected, and receives until `complete` or the deadline. False:
// the peer has hung up, or there is no connection.
template <typename Complete>
bool Converse(Socket& socket, absl::string_view text, absl::Time deadline, std::string& received,
              Complete complete) {
  bool sent = false;
  while (absl::Now() < deadline && !complete(received)) {
    pollfd waiting = {socket.descriptor(), static_cast<int16_t>(sent ? POLLIN : POLLOUT), 0};
    if (poll(&waiting, 1, MillisecondsUntil(deadline)) <= 0) continue;
    if (!sent) {
      socket.Settle();
      if (socket.error() != 0) return false;
      sent = true;
      if (send(socket.descriptor(), text.data(), text.size(), MSG_NOSIGNAL) < 0) return false;
      continue;
    }
    std::array<char, 64> buffer;
    const ssize_t got = recv(socket.descriptor(), buffer.data(), buffer.size(), 0);
    if (got > 0) received.append(buffer.data(), static_cast<size_t>(got));
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
  }
  return true;
}

std::optional<std::string> Variable(const ReadVariable& variable, const char* name) {
  const char* const value = variable(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// Whether NETWORK/BITS has one of the addresses.
bool HasOneOf(absl::string_view network, std::span<const TcpAddress> addresses) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(network, absl::MaxSplits('/', 1));
  int bits = 0;
  if (!absl::SimpleAtoi(parts.second, &bits)) return false;
  const bool is_ipv6 = absl::StrContains(parts.first, ':');
  const absl::StatusOr<std::vector<TcpAddress>> base = ResolveAddress(
      is_ipv6 ? absl::StrCat("[", parts.first, "]:1") : absl::StrCat(parts.first, ":1"));
  if (!base.ok()) return false;
  if (!is_ipv6) bits += 96;  // IPv4 in its mapped form.
  return std::ranges::any_of(addresses, [&](const TcpAddress& address) {
    for (int bit = 0; bit < std::clamp(bits, 0, 128); ++bit) {
      const auto byte = static_cast<size_t>(bit / 8);
      if (((address.ip[byte] ^ base->front().ip[byte]) >> (7 - bit % 8) & 1) != 0) return false;
    }
    return true;
  });
}

// Whether other programs take the entry of no_proxy to except the host.
bool IsMeant(absl::string_view entry, absl::string_view host,
             std::span<const TcpAddress> addresses) {
  entry = absl::StripAsciiWhitespace(entry);
  if (entry == "*" || HasOneOf(entry, addresses)) return true;
  absl::ConsumePrefix(&entry, "*");
  const size_t colon = entry.rfind(':');
  if (colon != absl::string_view::npos && entry.find(':') == colon) entry = entry.substr(0, colon);
  absl::string_view name = entry;
  absl::ConsumePrefix(&name, ".");
  return !name.empty() && (absl::EqualsIgnoreCase(host, name) ||
                           absl::EndsWithIgnoreCase(host, absl::StrCat(".", name)));
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
  Socket socket(address);
  std::string received;
  const bool open =
      Converse(socket, kHttp2Hello, absl::Now() + timeout, received,
               [](const std::string& text) { return text.size() >= kFrameHeaderBytes; });
  return ClassifyGreeting(received, !open);
}

absl::Status TryProxy(const ProxySetting& proxy, const std::string& address,
                      absl::Duration timeout) {
  const std::string name = absl::StrCat("the proxy ", proxy.address, " (", proxy.variable, ")");
  const absl::StatusOr<std::vector<TcpAddress>> places = ResolveAddress(proxy.address);
  if (!places.ok()) return Annotate(places.status(), name);
  const std::vector<ConnectAttempt> attempts = ConnectToAll(*places, timeout);
  const auto connected = std::ranges::find_if(
      attempts, [](const ConnectAttempt& attempt) { return attempt.status.ok(); });
  if (connected == attempts.end()) {
    const absl::Status& first = attempts.front().status;
    return absl::Status(first.code(), absl::StrCat(name, " ", first.message()));
  }
  Socket socket(connected->address);
  std::string answer;
  Converse(socket, absl::StrCat("CONNECT ", address, " HTTP/1.1\r\nHost: ", address, "\r\n\r\n"),
           absl::Now() + timeout, answer, [](const std::string& text) {
             return absl::StrContains(text, '\n') || text.size() > kMostAnswerBytes;
           });
  const std::string line =
      Printable(absl::StripAsciiWhitespace(absl::string_view(answer).substr(0, answer.find('\n'))));
  // gRPC sends the user and the password that the variable holds.
  const bool asks = absl::StrContains(line, " 407") && proxy.has_password;
  if (absl::StrContains(line, " 200") || asks) return absl::OkStatus();
  return absl::UnavailableError(
      line.empty() ? absl::StrCat(name, " does not answer CONNECT ", address)
                   : absl::StrCat(name, " answers CONNECT ", address, " with ", line));
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
    refused |= attempt.status.message() == kRefuses;
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

ProxySetting FindProxy(const std::string& host, std::span<const TcpAddress> addresses,
                       const ReadVariable& variable) {
  ProxySetting proxy;
  std::optional<std::string> value;
  for (const char* const name : {"grpc_proxy", "https_proxy", "http_proxy"}) {
    value = Variable(variable, name);
    proxy.variable = name;
    if (value.has_value()) break;  // An empty one says that there is no proxy.
  }
  if (!value.has_value()) {
    // gRPC reads none of these.
    for (const char* const name : {"all_proxy", "ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"}) {
      if (Variable(variable, name).value_or("").empty()) continue;
      proxy.variable = name;
      proxy.finding = absl::StrCat(name, " is set, which gRPC does not read");
      proxy.hint = absl::StrCat(
          name,
          " is not used: if only a proxy leads to the coordinator, set "
          "https_proxy=http://HOST:PORT to one that allows CONNECT (SOCKS is not supported)");
      return proxy;
    }
    return {};
  }
  if (value->empty()) return {};
  const size_t scheme_end = value->find("://");
  const std::string scheme = scheme_end == std::string::npos ? "" : value->substr(0, scheme_end);
  if (scheme != "http") {
    proxy.finding =
        absl::StrCat(proxy.variable,
                     scheme.empty() ? " has no http:// at its beginning"
                                    : absl::StrCat(" is a proxy of ", Printable(scheme), "://"),
                     ", which gRPC does not use: it connects directly");
    proxy.remedy = absl::StrCat(
        "if only a proxy leads to the coordinator, set ", proxy.variable,
        "=http://HOST:PORT to one that allows CONNECT (SOCKS is not supported); else unset it");
    proxy.hint = absl::StrCat(proxy.finding, "; ", proxy.remedy);
    return proxy;
  }
  const std::string authority =
      value->substr(scheme_end + 3, value->find('/', scheme_end + 3) - (scheme_end + 3));
  const size_t at = authority.rfind('@');
  proxy.has_password = at != std::string::npos;
  proxy.address = at == std::string::npos ? authority : authority.substr(at + 1);
  if (!SplitHostPort(proxy.address, /*allow_any_port=*/false).ok()) {
    absl::StrAppend(&proxy.address, ":80");
  }
  std::optional<std::string> exceptions = Variable(variable, "no_grpc_proxy");
  if (!exceptions.has_value()) exceptions = Variable(variable, "no_proxy");
  std::string meant;
  for (const absl::string_view entry :
       absl::StrSplit(exceptions.value_or(""), ',', absl::SkipEmpty())) {
    if (absl::EndsWith(host, entry)) return {};  // As gRPC compares.
    if (meant.empty() && IsMeant(entry, host, addresses)) meant = std::string(entry);
  }
  for (const absl::string_view entry :
       absl::StrSplit(Variable(variable, "NO_PROXY").value_or(""), ',', absl::SkipEmpty())) {
    if (meant.empty() && IsMeant(entry, host, addresses)) meant = absl::StrCat("NO_PROXY=", entry);
  }
  proxy.used = true;
  proxy.finding = absl::StrCat("connections go through the proxy ", Printable(proxy.address), " (",
                               proxy.variable, ")");
  proxy.remedy = absl::StrCat(
      "if that is not meant, unset ", proxy.variable, " or add ", host, " itself to no_proxy",
      meant.empty() ? ""
                    : absl::StrCat(" (\"", Printable(meant),
                                   "\" does not except it: gRPC reads no_proxy in small letters "
                                   "and compares ends of names, without blanks, *, ports and "
                                   "networks)"),
      "; else have the proxy's operator allow CONNECT to this host and port");
  return proxy;
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
    const Obstacle obstacle = ObstacleOf(proxy, TryProxy(proxy, address, kTimeout));
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
  const std::string why =
      ExplainNoAnswer(addresses.front(), security.UsesTls(),
                      [](const char* name) -> const char* { return std::getenv(name); });
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
