#include "worker/preflight/reach_checks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace causeway::worker {
namespace {

constexpr char kNameCheck[] = "name";
constexpr char kTcpCheck[] = "tcp";
constexpr char kProtocolCheck[] = "protocol";
constexpr char kCertificateCheck[] = "certificates";

}  // namespace

CheckResult JudgeNames(const std::string& address,
                       const absl::StatusOr<std::vector<TcpAddress>>& addresses,
                       absl::Duration time, const ProxySetting& proxy) {
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
      proxy.remedy.empty()
          ? Passed(kNameCheck, finding)
          : Warned(kNameCheck, absl::StrCat(finding, ", but ", proxy.finding), proxy.remedy);
  result.values = {{"addresses", static_cast<double>(addresses->size()), "1"},
                   {"time", absl::ToDoubleSeconds(time), "s"}};
  return result;
}

CheckResult JudgeConnections(std::span<const ConnectAttempt> attempts) {
  std::string connected;
  std::string failed;
  absl::Duration fastest = absl::InfiniteDuration();
  for (const ConnectAttempt& attempt : attempts) {
    if (attempt.status.ok()) {
      absl::StrAppend(&connected, connected.empty() ? "" : ", ", attempt.address.ToString(), " in ",
                      FormatTime(attempt.time));
      fastest = std::min(fastest, attempt.time);
      continue;
    }
    absl::StrAppend(&failed, failed.empty() ? "" : ", ", attempt.address.ToString(), " ",
                    attempt.status.message());
  }
  if (connected.empty()) {
    return Failed(kTcpCheck, failed, ObstacleOf(attempts).remedy);
  }
  CheckResult result =
      failed.empty() ? Passed(kTcpCheck, absl::StrCat("connected to ", connected))
                     : Warned(kTcpCheck, absl::StrCat("connected to ", connected, ", but ", failed),
                              "every new connection may try the dead address first: take it "
                              "out of the name, or give --coordinator the address that works");
  result.values = {{"connect_time", absl::ToDoubleSeconds(fastest), "s"}};
  return result;
}

CheckResult JudgeProxy(const std::string& address, const ProxySetting& proxy,
                       const absl::Status& tunnel) {
  const Obstacle obstacle = ObstacleOf(proxy, tunnel);
  return obstacle.finding.empty()
             ? Passed(kTcpCheck, absl::StrCat(proxy.address, " connects to ", address))
             : Failed(kTcpCheck, obstacle.finding, obstacle.remedy);
}

CheckResult JudgeGreeting(const std::string& address, Greeting greeting, bool speaks_tls) {
  const Obstacle obstacle = ObstacleOf(address, greeting, speaks_tls);
  return obstacle.finding.empty() ? Passed(kProtocolCheck, "plaintext HTTP/2, as gRPC")
                                  : Failed(kProtocolCheck, obstacle.finding, obstacle.remedy);
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

}  // namespace causeway::worker
