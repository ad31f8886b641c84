#include "common/rpc/tcp_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"

namespace causeway {
namespace {

constexpr std::array<uint8_t, 12> kMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

absl::Status ResolverError(int code, const std::string& host) {
  const std::string reason = code == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(code);
  if (code == EAI_AGAIN || code == EAI_SYSTEM || code == EAI_FAIL) {
    return absl::UnavailableError(absl::StrCat("the resolver has no answer for ", host, ": ",
                                               reason, "; check the name and /etc/resolv.conf"));
  }
  return absl::NotFoundError(absl::StrCat("no address is known for ", host, ": ", reason,
                                          "; check the name, or give an IP address"));
}

}  // namespace

bool TcpAddress::is_ipv4() const {
  return std::equal(kMappedPrefix.begin(), kMappedPrefix.end(), ip.begin());
}

bool TcpAddress::is_loopback() const {
  if (is_ipv4()) return ip[12] == 127;
  return std::all_of(ip.begin(), ip.end() - 1, [](uint8_t byte) { return byte == 0; }) &&
         ip[15] == 1;
}

std::string TcpAddress::ToString() const {
  char text[INET6_ADDRSTRLEN] = {};
  if (is_ipv4()) {
    inet_ntop(AF_INET, ip.data() + kMappedPrefix.size(), text, sizeof(text));
    return absl::StrCat(text, ":", port);
  }
  inet_ntop(AF_INET6, ip.data(), text, sizeof(text));
  return absl::StrCat("[", text, "]:", port);
}

std::optional<TcpAddress> FromSocketAddress(const sockaddr_storage& address) {
  TcpAddress result;
  if (address.ss_family == AF_INET) {
    sockaddr_in in4;
    std::memcpy(&in4, &address, sizeof(in4));
    std::copy(kMappedPrefix.begin(), kMappedPrefix.end(), result.ip.begin());
    std::memcpy(result.ip.data() + kMappedPrefix.size(), &in4.sin_addr, sizeof(in4.sin_addr));
    result.port = ntohs(in4.sin_port);
    return result;
  }
  if (address.ss_family == AF_INET6) {
    sockaddr_in6 in6;
    std::memcpy(&in6, &address, sizeof(in6));
    std::memcpy(result.ip.data(), &in6.sin6_addr, sizeof(in6.sin6_addr));
    result.port = ntohs(in6.sin6_port);
    result.scope = in6.sin6_scope_id;
    return result;
  }
  return std::nullopt;
}

socklen_t ToSocketAddress(const TcpAddress& address, sockaddr_storage& out) {
  std::memset(&out, 0, sizeof(out));
  if (address.is_ipv4()) {
    sockaddr_in in4 = {};
    in4.sin_family = AF_INET;
    in4.sin_port = htons(address.port);
    std::memcpy(&in4.sin_addr, address.ip.data() + kMappedPrefix.size(), sizeof(in4.sin_addr));
    std::memcpy(&out, &in4, sizeof(in4));
    return sizeof(in4);
  }
  sockaddr_in6 in6 = {};
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htons(address.port);
  in6.sin6_scope_id = address.scope;
  std::memcpy(&in6.sin6_addr, address.ip.data(), sizeof(in6.sin6_addr));
  std::memcpy(&out, &in6, sizeof(in6));
  return sizeof(in6);
}

namespace {

// `flags` of getaddrinfo.
absl::StatusOr<std::vector<TcpAddress>> LookUp(absl::string_view host_port, bool allow_any_port,
                                               int flags) {
  ASSIGN_OR_RETURN(const HostPort name, SplitHostPort(host_port, allow_any_port));
  const std::string& host = name.host;
  const std::string& port = name.port;
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
  if (error != 0) return ResolverError(error, host);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  std::vector<TcpAddress> addresses;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    sockaddr_storage storage = {};
    std::memcpy(&storage, entry->ai_addr, std::min<size_t>(entry->ai_addrlen, sizeof(storage)));
    const std::optional<TcpAddress> address = FromSocketAddress(storage);
    if (address.has_value() && std::ranges::find(addresses, *address) == addresses.end()) {
      addresses.push_back(*address);
    }
  }
  if (addresses.empty()) return ResolverError(EAI_NONAME, host);
  return addresses;
}

}  // namespace

absl::StatusOr<std::vector<TcpAddress>> ResolveAddress(absl::string_view host_port,
                                                       bool allow_any_port) {
  return LookUp(host_port, allow_any_port, 0);
}

absl::StatusOr<std::vector<TcpAddress>> ResolveAddresses(absl::string_view addresses) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, SplitAddresses(addresses));
  std::vector<TcpAddress> all;
  absl::Status first_failure;
  for (const std::string& name : names) {
    const absl::StatusOr<std::vector<TcpAddress>> found = ResolveAddress(name);
    first_failure.Update(found.status());
    if (found.ok()) all.insert(all.end(), found->begin(), found->end());
  }
  if (all.empty()) return first_failure;
  return all;
}

absl::StatusOr<TcpAddress> ParseGrpcPeer(absl::string_view peer) {
  const std::string text = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "ipv4:") || absl::ConsumePrefix(&rest, "ipv6:")) {
    const auto found = LookUp(rest, /*allow_any_port=*/true, AI_NUMERICHOST);
    if (found.ok()) return found->front();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "expected ipv4:ADDRESS:PORT or ipv6:[ADDRESS]:PORT, got \"", peer.substr(0, 200), "\""));
}

namespace {

bool IsEveryAddress(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

bool IsLinkLocal(const TcpAddress& address) {
  return address.ip[0] == 0xfe && (address.ip[1] & 0xc0) == 0x80;
}

std::string WithPort(absl::string_view listen, int port) {
  return absl::StrCat(listen.substr(0, listen.rfind(':')), ":", port);
}

}  // namespace

std::vector<std::string> ReachableAddresses(absl::string_view listen, int port) {
  const absl::StatusOr<HostPort> split = SplitHostPort(listen, /*allow_any_port=*/true);
  if (!split.ok()) return {};
  if (!IsEveryAddress(split->host)) return {WithPort(listen, port)};
  std::vector<std::string> found;
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return found;
  for (const ifaddrs* each = interfaces; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && (family != AF_INET6 || split->host == "0.0.0.0")) continue;
    sockaddr_storage storage{};
    std::memcpy(&storage, each->ifa_addr,
                family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    std::optional<TcpAddress> address = FromSocketAddress(storage);
    if (!address.has_value() || address->is_loopback() || IsLinkLocal(*address)) continue;
    address->port = static_cast<uint16_t>(port);
    const std::string text = address->ToString();
    if (std::ranges::find(found, text) == found.end()) found.push_back(text);
  }
  freeifaddrs(interfaces);
  return found;
}

std::string AddressFromHere(absl::string_view listen, int port) {
  const absl::StatusOr<HostPort> split = SplitHostPort(listen, /*allow_any_port=*/true);
  if (split.ok() && split->host == "0.0.0.0") return absl::StrCat("127.0.0.1:", port);
  if (split.ok() && split->host == "::") return absl::StrCat("[::1]:", port);
  return WithPort(listen, port);
}

}  // namespace causeway
