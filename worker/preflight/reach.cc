#include "worker/preflight/reach.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace causeway::worker {
namespace {

constexpr char kNameCheck[] = "name";
constexpr char kTcpCheck[] = "tcp";
constexpr char kProtocolCheck[] = "protocol";
constexpr char kCertificateCheck[] = "certificates";

// HTTP/2's preface and an empty SETTINGS frame.
constexpr absl::string_view kHttp2Hello("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
constexpr size_t kFrameHeaderBytes = 9;

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
  if (error == ECONNREFUSED) return absl::UnavailableError("refuses the connection");
  return absl::UnavailableError(absl::AsciiStrToLower(std::strerror(error)));
}

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
  const absl::Time deadline = absl::Now() + timeout;
  Socket socket(address);
  std::string received;
  bool sent = false;
  bool closed = false;
  while (absl::Now() < deadline && !closed && received.size() < 64) {
    pollfd waiting = {socket.descriptor(), static_cast<int16_t>(sent ? POLLIN : POLLOUT), 0};
    if (poll(&waiting, 1, MillisecondsUntil(deadline)) <= 0) continue;
    if (!sent) {
      socket.Settle();
      if (socket.error() != 0) return Greeting::kClosed;
      sent = true;
      closed = send(socket.descriptor(), kHttp2Hello.data(), kHttp2Hello.size(), MSG_NOSIGNAL) < 0;
      continue;
    }
    std::array<char, 64> buffer;
    const ssize_t got = recv(socket.descriptor(), buffer.data(), buffer.size(), 0);
    if (got > 0) received.append(buffer.data(), static_cast<size_t>(got));
    closed = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
    const bool complete = received.size() >= kFrameHeaderBytes;
    if (complete) break;
  }
  return ClassifyGreeting(received, closed);
}

CheckResult JudgeNames(const std::string& address,
                       const absl::StatusOr<std::vector<TcpAddress>>& addresses,
                       absl::Duration time, const std::string& proxy) {
  if (!addresses.ok()) {
    return Failed(kNameCheck, addresses.status().message(),
                  "check --coordinator; ask the coordinator's operator for its address");
  }
  std::string list;
  for (const TcpAddress& one : *addresses) {
    absl::StrAppend(&list, list.empty() ? "" : ", ", one.ToString());
  }
  const std::string finding = list == address ? list : absl::StrCat(address, " is ", list);
  CheckResult result =
      proxy.empty()
          ? Passed(kNameCheck, finding)
          : Warned(kNameCheck, absl::StrCat(finding, ", but ", proxy, " is set"),
                   "connections go through that proxy: if that is not meant, unset it or add the "
                   "coordinator's host to no_proxy");
  result.values = {{"addresses", static_cast<double>(addresses->size()), "1"},
                   {"time", absl::ToDoubleSeconds(time), "s"}};
  return result;
}

CheckResult JudgeConnections(std::span<const ConnectAttempt> attempts) {
  std::string connected;
  std::string failed;
  bool refused = false;
  bool silent = false;
  absl::Duration fastest = absl::InfiniteDuration();
  for (const ConnectAttempt& attempt : attempts) {
    if (attempt.status.ok()) {
      absl::StrAppend(&connected, connected.empty() ? "" : ", ", attempt.address.ToString(), " in ",
                      FormatTime(attempt.time));
      fastest = std::min(fastest, attempt.time);
      continue;
    }
    refused |= attempt.status.message() == "refuses the connection";
    silent |= absl::IsDeadlineExceeded(attempt.status);
    absl::StrAppend(&failed, failed.empty() ? "" : ", ", attempt.address.ToString(), " ",
                    attempt.status.message());
  }
  if (connected.empty()) {
    return Failed(kTcpCheck, failed,
                  refused ? "nothing listens there: is causeway-coordinator running, with --listen "
                            "on an address that this site reaches, and is the port right?"
                  : silent ? "check the address, and that firewalls on both sides let this port "
                             "through"
                           : "check this machine's network and routes");
  }
  CheckResult result =
      failed.empty() ? Passed(kTcpCheck, absl::StrCat("connected to ", connected))
                     : Warned(kTcpCheck, absl::StrCat("connected to ", connected, ", but ", failed),
                              "every new connection may try the dead address first: take it "
                              "out of the name, or give --coordinator the address that works");
  result.values = {{"connect_time", absl::ToDoubleSeconds(fastest), "s"}};
  return result;
}

CheckResult JudgeGreeting(const std::string& address, Greeting greeting, bool speaks_tls) {
  if (greeting == Greeting::kHttp2) return Passed(kProtocolCheck, "plaintext HTTP/2, as gRPC");
  if (speaks_tls || greeting == Greeting::kTls) {
    return Failed(kProtocolCheck, absl::StrCat(address, " wants TLS, and this site has none"),
                  "give --tls_ca, and --tls_cert and --tls_key or --token_file: the coordinator's "
                  "operator hands them out");
  }
  constexpr char kRemedy[] =
      "another program has this port: check --coordinator against the coordinator's log line "
      "\"listens on\"";
  switch (greeting) {
    case Greeting::kHttp1:
      return Failed(kProtocolCheck, absl::StrCat(address, " is a web server, not a coordinator"),
                    kRemedy);
    case Greeting::kClosed:
      return Failed(kProtocolCheck, absl::StrCat(address, " hangs up at once"), kRemedy);
    case Greeting::kSilent:
      return Failed(kProtocolCheck, absl::StrCat(address, " accepts connections and says nothing"),
                    absl::StrCat(kRemedy, "; or the coordinator hangs"));
    default:
      return Failed(kProtocolCheck, absl::StrCat(address, " speaks another protocol"), kRemedy);
  }
}

CheckResult JudgeHandshake(const absl::StatusOr<TlsHandshake>& handshake) {
  if (!handshake.ok()) {
    return Failed(kProtocolCheck, handshake.status().message(),
                  "without this handshake nothing else can work");
  }
  CheckResult result =
      Passed(kProtocolCheck,
             absl::StrCat(handshake->version, ", ", handshake->cipher, ", with ",
                          handshake->server.subject, ", in ", FormatTime(handshake->time)));
  result.values = {{"handshake_time", absl::ToDoubleSeconds(handshake->time), "s"}};
  return result;
}

CheckResult JudgeCertificates(const Certificate& server, const std::optional<Certificate>& own,
                              const std::string& own_file, absl::Time now) {
  const absl::Duration server_left = server.not_after - now;
  std::string finding = absl::StrCat("the coordinator's ends in ", FormatTime(server_left));
  std::string remedy;
  if (server_left < kExpiryWarning) {
    remedy = "the coordinator's operator should renew its certificate";
  }
  std::vector<Measured> values = {
      {"coordinator_certificate_left", absl::ToDoubleSeconds(server_left), "s"}};
  if (own.has_value()) {
    const absl::Duration own_left = own->not_after - now;
    absl::StrAppend(&finding, ", this site's in ", FormatTime(own_left));
    values.push_back({"own_certificate_left", absl::ToDoubleSeconds(own_left), "s"});
    const std::string warning = ExpiryWarning(*own, own_file, now);
    absl::StrAppend(&remedy, remedy.empty() || warning.empty() ? "" : "; ", warning);
  }
  CheckResult result = remedy.empty() ? Passed(kCertificateCheck, finding)
                                      : Warned(kCertificateCheck, finding, remedy);
  result.values = std::move(values);
  return result;
}

std::string FindProxy(const std::string& host, const char* (*variable)(const char* name)) {
  const auto read = [&](const char* name) {
    const char* const value = variable(name);
    return std::string(value == nullptr ? "" : value);
  };
  std::string found;
  for (const char* name : {"grpc_proxy", "https_proxy", "http_proxy"}) {
    if (found.empty() && !read(name).empty()) found = name;
  }
  if (found.empty()) return "";
  std::string exceptions = read("no_grpc_proxy");
  if (exceptions.empty()) exceptions = read("no_proxy");
  for (const absl::string_view entry :
       absl::StrSplit(exceptions, absl::ByAnyChar(", "), absl::SkipEmpty())) {
    if (absl::EndsWith(host, entry)) return "";
  }
  return found;
}

}  // namespace causeway::worker
