#include "common/rpc/tcp_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"

namespace causeway {
namespace {

std::optional<std::string> ValueOf(const char* name) {
  const char* const value = std::getenv(name);
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

// "%40" is "@", and so on.
std::string PercentDecoded(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escapes = text[i] == '%' && i + 2 < text.size() &&
                         absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 1])) &&
                         absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 2]));
    if (escapes) {
      decoded += absl::HexStringToBytes(text.substr(i + 1, 2));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

}  // namespace

ProxySetting FindProxy(const std::string& host, std::span<const TcpAddress> addresses) {
  ProxySetting proxy;
  std::optional<std::string> value;
  for (const char* const name : {"grpc_proxy", "https_proxy", "http_proxy"}) {
    value = ValueOf(name);
    proxy.variable = name;
    if (value.has_value()) break;  // An empty one says that there is no proxy.
  }
  if (!value.has_value()) {
    // gRPC reads none of these.
    for (const char* const name : {"all_proxy", "ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"}) {
      if (ValueOf(name).value_or("").empty()) continue;
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
  if (at == std::string::npos && absl::StrContains(*value, '@')) {
    proxy.finding = absl::StrCat(proxy.variable, " is no URL");
    proxy.remedy = "write / ? # and @ in its password as %2F %3F %23 and %40";
    proxy.hint = absl::StrCat(proxy.finding, ": ", proxy.remedy);
    return proxy;
  }
  proxy.address = at == std::string::npos ? authority : authority.substr(at + 1);
  if (at != std::string::npos) proxy.credentials = PercentDecoded(authority.substr(0, at));
  if (!SplitHostPort(proxy.address, /*allow_any_port=*/false).ok()) {
    absl::StrAppend(&proxy.address, ":80");
  }
  std::optional<std::string> exceptions = ValueOf("no_grpc_proxy");
  if (!exceptions.has_value()) exceptions = ValueOf("no_proxy");
  std::string meant;
  for (const absl::string_view entry :
       absl::StrSplit(exceptions.value_or(""), ',', absl::SkipEmpty())) {
    if (absl::EndsWith(host, entry)) return {};  // As gRPC compares.
    if (meant.empty() && IsMeant(entry, host, addresses)) meant = std::string(entry);
  }
  for (const absl::string_view entry :
       absl::StrSplit(ValueOf("NO_PROXY").value_or(""), ',', absl::SkipEmpty())) {
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

ProxySetting ProxyTo(absl::string_view address) {
  const absl::StatusOr<HostPort> split = SplitHostPort(address, /*allow_any_port=*/false);
  return split.ok() ? FindProxy(split->host, {}) : ProxySetting();
}

absl::StatusOr<std::vector<TcpAddress>> OtherEndsOf(absl::string_view addresses) {
  ASSIGN_OR_RETURN(std::vector<std::string> ends, SplitAddresses(addresses));
  for (std::string& end : ends) {
    const ProxySetting proxy = ProxyTo(end);
    if (proxy.used) end = proxy.address;
  }
  return ResolveAddresses(absl::StrJoin(ends, ","));
}

namespace {

constexpr size_t kMostProxyBytes = 4096;

// `whose` stands before what the address does.
absl::StatusOr<TcpStream> OpenOne(const std::string& address, absl::Time deadline,
                                  const std::string& whose) {
  const absl::StatusOr<std::vector<TcpAddress>> found = ResolveAddress(address);
  RETURN_IF_ERROR(Annotate(found.status(), whose));
  absl::Status last;
  for (size_t i = 0; i < found->size(); ++i) {
    const auto others = static_cast<int>(found->size() - i - 1);
    absl::StatusOr<TcpStream> connection = TcpStream::Open((*found)[i], deadline, others);
    if (connection.ok()) return connection;
    last = connection.status();
  }
  return absl::UnavailableError(absl::StrCat(whose, " ", last.message()));
}

}  // namespace

absl::Status ConnectError(int error) {
  if (error == 0) return absl::OkStatus();
  if (error == EINPROGRESS || error == ETIMEDOUT) {
    return absl::DeadlineExceededError("does not answer");
  }
  if (error == ECONNREFUSED) return absl::UnavailableError(kRefusesConnection);
  return absl::UnavailableError(absl::AsciiStrToLower(std::strerror(error)));
}

absl::StatusOr<TcpStream> TcpStream::Open(const TcpAddress& address, absl::Time deadline,
                                          int others) {
  sockaddr_storage storage;
  const socklen_t length = ToSocketAddress(address, storage);
  const absl::Time now = absl::Now();
  TcpStream result(now + (deadline - now) / (others + 1));
  result.socket_.Reset(socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!result.socket_.valid()) return ConnectError(errno);
  int error = 0;
  if (connect(result.socket_.get(), reinterpret_cast<const sockaddr*>(&storage), length) != 0) {
    error = errno;
  }
  if (error == EINPROGRESS && result.Wait(POLLOUT)) {
    socklen_t size = sizeof(error);
    getsockopt(result.socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  RETURN_IF_ERROR(ConnectError(error));
  result.deadline_ = deadline;
  return result;
}

bool TcpStream::Send(absl::string_view data) {
  while (!data.empty()) {
    const ssize_t sent = send(socket_.get(), data.data(), data.size(), MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (!Wait(POLLOUT)) return false;
      continue;
    }
    if (sent <= 0) return false;
    data.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

ssize_t TcpStream::Receive(char* data, size_t size) {
  for (;;) {
    const ssize_t got = recv(socket_.get(), data, size, 0);
    if (got >= 0 || (errno != EAGAIN && errno != EINTR)) return got;
    if (!Wait(POLLIN)) return -1;
  }
}

bool TcpStream::Wait(int16_t events) const {
  while (!late()) {
    pollfd wanted{socket_.get(), events, 0};
    const int64_t left = absl::ToInt64Milliseconds(deadline_ - absl::Now());
    const int ready = poll(&wanted, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 60'000)) + 1);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
  return false;
}

absl::StatusOr<TcpStream> DialTcp(const std::string& address, absl::Time deadline) {
  const ProxySetting proxy = ProxyTo(address);
  return proxy.used ? DialThrough(proxy, address, deadline) : OpenOne(address, deadline, address);
}

absl::StatusOr<TcpStream> DialThrough(const ProxySetting& proxy, const std::string& address,
                                      absl::Time deadline) {
  const std::string name =
      absl::StrCat("the proxy ", Printable(proxy.address), " (", proxy.variable, ")");
  ASSIGN_OR_RETURN(TcpStream connection, OpenOne(proxy.address, deadline, name));
  connection.Send(absl::StrCat("CONNECT ", address, " HTTP/1.1\r\nHost: ", address, "\r\n",
                               proxy.credentials.empty()
                                   ? ""
                                   : absl::StrCat("Proxy-Authorization: Basic ",
                                                  absl::Base64Escape(proxy.credentials), "\r\n"),
                               "\r\n"));
  // Byte for byte: what follows the answer is of the other end.
  std::string answer;
  char byte = 0;
  while (!absl::EndsWith(answer, "\r\n\r\n") && answer.size() < kMostProxyBytes &&
         connection.Receive(&byte, 1) == 1) {
    answer += byte;
  }
  const std::string line =
      Printable(absl::StripAsciiWhitespace(absl::string_view(answer).substr(0, answer.find('\n'))));
  if (line.empty()) {
    return absl::UnavailableError(absl::StrCat(name, " does not answer CONNECT ", address));
  }
  constexpr size_t kVersionBytes = 8;  // HTTP/1.1
  if (absl::StartsWith(line, "HTTP/1.") && line.size() > kVersionBytes &&
      absl::StartsWith(absl::string_view(line).substr(kVersionBytes), " 200") &&
      absl::EndsWith(answer, "\r\n\r\n")) {
    return connection;
  }
  return absl::UnavailableError(absl::StrCat(name, " answers CONNECT ", address, " with ", line));
}

}  // namespace causeway
