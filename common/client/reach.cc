#include "common/client/reach.h"

#include <algorithm>
#include <array>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/text.h"
#include "common/client/session.h"
#include "common/rpc/tcp_stream.h"
#include "common/telemetry/log.h"

namespace causeway {
namespace {

// HTTP/2's preface and an empty SETTINGS frame.
constexpr absl::string_view kHttp2Hello("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
constexpr size_t kFrameHeaderBytes = 9;

// A frame header: 3 bytes of length, type 4 (SETTINGS), flags, stream 0.
bool IsHttp2(absl::string_view received) {
  return received.size() >= kFrameHeaderBytes && received[0] == 0 && received[3] == 4 &&
         received.substr(5, 4) == absl::string_view("\0\0\0\0", 4);
}

// A TLS alert, or a handshake message.
bool IsTls(absl::string_view received) {
  return received.size() >= 2 && (received[0] == 0x15 || received[0] == 0x16) && received[1] == 3;
}

// Looks what a server says to a client that introduces itself in plaintext HTTP/2.
Way Greet(const std::string& address, const TcpAddress& place, absl::Duration patience) {
  absl::StatusOr<TcpStream> connection = TcpStream::Open(place, absl::Now() + patience);
  std::string received;
  bool open = connection.ok() && connection->Send(kHttp2Hello);
  bool late = absl::IsDeadlineExceeded(connection.status());
  while (open && received.size() < kFrameHeaderBytes) {
    std::array<char, 64> buffer;
    const ssize_t got = connection->Receive(buffer.data(), buffer.size());
    late = got < 0 && connection->late();
    open = got > 0;
    if (open) received.append(buffer.data(), static_cast<size_t>(got));
  }
  if (IsHttp2(received)) return {.open = true};
  const bool is_web = absl::StartsWith(received, "HTTP/1.");
  if (!is_web && (IsTls(received) || SpeaksTls(address, patience))) {
    return {.finding = absl::StrCat(address, " wants TLS, and this site has none"),
            .remedy =
                "give --tls_ca, and --tls_cert and --tls_key or --token_file: the "
                "coordinator's operator hands them out"};
  }
  const char* const finding = is_web              ? " is a web server, not a coordinator"
                              : !received.empty() ? " speaks another protocol"
                              : late              ? " accepts connections and says nothing"
                                                  : " hangs up at once";
  return {.finding = absl::StrCat(address, finding),
          .remedy = absl::StrCat("another program has this port: check the address against the "
                                 "coordinator's log line \"listens on\"",
                                 late ? "; or the coordinator hangs" : "")};
}

Way Through(const ProxySetting& proxy, const std::string& address, absl::Duration patience) {
  const absl::Status tunnel = DialThrough(proxy, address, absl::Now() + patience).status();
  if (!tunnel.ok()) return {.finding = std::string(tunnel.message()), .remedy = proxy.remedy};
  return {.open = true, .finding = proxy.finding, .remedy = proxy.remedy};
}

}  // namespace

Way FindWayTo(const std::string& address, std::span<const TcpAddress> places, bool uses_tls,
              absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  std::string connected;
  std::string failed;
  std::optional<TcpAddress> first;
  bool refused = false;
  bool silent = false;
  for (size_t i = 0; i < places.size(); ++i) {
    const auto others = static_cast<int>(places.size() - i - 1);
    const absl::Status status = TcpStream::Open(places[i], deadline, others).status();
    std::string& list = status.ok() ? connected : failed;
    absl::StrAppend(&list, list.empty() ? "" : ", ", places[i].ToString(), status.ok() ? "" : " ",
                    status.message());
    if (status.ok() && !first.has_value()) first = places[i];
    refused |= status.message() == kRefusesConnection;
    silent |= absl::IsDeadlineExceeded(status);
  }
  if (!first.has_value()) {
    return {.finding = failed,
            .remedy = refused  ? "nothing listens there: is causeway-coordinator running, with "
                                 "--listen on an address that this site reaches, and is the "
                                 "address right?"
                      : silent ? "check the address, and that firewalls on both sides let this "
                                 "port through"
                               : "check this machine's network and routes"};
  }
  if (!uses_tls) {
    Way greeted = Greet(address, *first, patience);
    if (!greeted.open) return greeted;
  }
  Way way = {.open = true,
             .finding = absl::StrCat(connected == address ? "" : absl::StrCat(address, " is "),
                                     connected)};
  if (failed.empty()) return way;
  absl::StrAppend(&way.finding, ", but ", failed);
  way.remedy =
      "every new connection may try the dead address first: take it out of the name, or give "
      "--coordinator the address that works";
  return way;
}

Way FindWay(const std::string& address, bool uses_tls, absl::Duration patience) {
  const absl::StatusOr<HostPort> host_port = SplitHostPort(address, /*allow_any_port=*/false);
  if (!host_port.ok()) return {.finding = std::string(host_port.status().message())};
  const absl::StatusOr<std::vector<TcpAddress>> places = ResolveAddress(address);
  const ProxySetting proxy =
      FindProxy(host_port->host, places.ok() ? std::span(*places) : std::span<const TcpAddress>());
  if (proxy.used) return Through(proxy, address, patience);
  if (!places.ok()) return {.finding = std::string(places.status().message())};
  Way way = FindWayTo(address, *places, uses_tls, patience);
  if (!way.open && !proxy.hint.empty()) {
    absl::StrAppend(&way.remedy, ". ", proxy.hint);
  } else if (way.open && way.remedy.empty() && !proxy.remedy.empty()) {
    absl::StrAppend(&way.finding, ", but ", proxy.finding);
    way.remedy = proxy.remedy;
  }
  return way;
}

std::string ExplainNoAnswer(const std::string& address, bool uses_tls) {
  const Way way = FindWay(address, uses_tls);
  if (way.open && !ProxyTo(address).used) return "";  // Who answers there has said why.
  return way.remedy.empty() ? "" : absl::StrCat(way.finding, ": ", way.remedy);
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
  const std::string why = ExplainNoAnswer(addresses.front(), security.UsesTls());
  if (why.empty()) return description;
  return absl::UnavailableError(absl::StrCat("no coordinator answers at ", coordinator, " within ",
                                             absl::FormatDuration(timeout), ": ", why));
}

absl::StatusOr<ReachedRun> ApproachRun(const std::string& addresses,
                                       const SecurityOptions& security) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, SplitAddresses(addresses));
  const absl::Time now = absl::Now();
  ReachedRun reached;
  ASSIGN_OR_RETURN(reached.security, MakeChannelSecurity(security, names.front(), now));
  for (size_t i = 1; i < names.size(); ++i) {
    RETURN_IF_ERROR(MakeChannelSecurity(security, names[i], now).status());
  }
  ASSIGN_OR_RETURN(reached.target, ChannelTarget(addresses));
  reached.security = SecurityTo(addresses, reached.target, std::move(reached.security));
  for (const std::string& name : names) {
    // One alone is looked up at each try, and a proxy looks up by itself.
    if (names.size() == 1 || ProxyTo(name).used) continue;
    const absl::Status found = ResolveAddress(name).status();
    if (!found.ok()) {
      Log().warn("the coordinator's address {} is left out until the next start or join: {}", name,
                 std::string(found.message()));
    }
  }
  LogSecurity(reached.security);
  reached.channels = std::make_shared<RenewedChannels>(reached.target, reached.security);
  return reached;
}

Link::Options LinkTo(const ReachedRun& reached, const std::string& addresses,
                     const std::string& congestion_control) {
  absl::StatusOr<std::vector<TcpAddress>> ends = OtherEndsOf(addresses);
  if (!ends.ok()) {  // The resolver is away for a moment.
    Log().warn("no congestion control and no figures of connections until the next start: {}",
               std::string(ends.status().message()));
    ends.emplace();
  }
  Link::Options link;
  link.channels = reached.channels;
  link.tcp = [meter = std::make_shared<TcpLinkMeter>(*std::move(ends), congestion_control)] {
    return meter->Sample();
  };
  return link;
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
