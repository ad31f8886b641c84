#include "worker/preflight/checks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/params/run_config.h"
#include "common/transfer/wire.h"

namespace causeway::worker {
namespace {

constexpr char kAnswerCheck[] = "coordinator";
constexpr char kIdentityCheck[] = "identity";
constexpr char kVersionCheck[] = "version";
constexpr char kConfigurationCheck[] = "configuration";
constexpr char kClockCheck[] = "clock";
constexpr char kRoundTripCheck[] = "round trip";

// Certificates, and logs that people compare, need no better clocks.
constexpr absl::Duration kTolerableSkew = absl::Seconds(2);

std::vector<absl::Duration> SortedRoundTrips(std::span<const EchoSample> samples) {
  std::vector<absl::Duration> times;
  // The first call also opened the connection.
  for (const EchoSample& sample : samples.size() > 1 ? samples.subspan(1) : samples) {
    times.push_back(sample.round_trip);
  }
  std::ranges::sort(times);
  return times;
}

}  // namespace

CheckResult JudgeAnswer(const std::string& address, const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return Passed(kAnswerCheck, absl::StrCat("answers at ", address));
    case absl::StatusCode::kUnimplemented:
      return Failed(kAnswerCheck,
                    absl::StrCat(address, " speaks gRPC, but knows nothing of causeway.v1.Probe"),
                    absl::StrCat("it is another service, or a coordinator of an older release than "
                                 "this one (",
                                 kSoftwareVersion, ")"));
    case absl::StatusCode::kUnauthenticated:
      return Failed(kAnswerCheck,
                    absl::StrCat("the coordinator does not know us: ", status.message()),
                    "give the credentials that the coordinator's operator made for this site");
    case absl::StatusCode::kPermissionDenied:
      return Failed(kAnswerCheck, absl::StrCat("the coordinator refuses us: ", status.message()),
                    "ask the coordinator's operator for credentials of this run");
    case absl::StatusCode::kDeadlineExceeded:
      return Failed(kAnswerCheck,
                    absl::StrCat(address, " accepts connections, but no call is answered in time"),
                    "is it a coordinator at all? If so, is it overloaded or stopped? See its log");
    default:
      return Failed(kAnswerCheck, absl::StrCat("no call is answered: ", status.message()),
                    "see the coordinator's log");
  }
}

CheckResult JudgeIdentity(const v1::EchoResponse& echo, const std::string& worker_id) {
  const std::string who =
      echo.identity().empty()
          ? absl::StrCat("the coordinator authenticates nobody; it sees us as ", echo.peer())
          : absl::StrCat("the coordinator takes us for ", echo.identity(), " at ", echo.peer());
  const std::string id = absl::StrCat("\"", worker_id, "\"");
  switch (echo.id_state()) {
    case v1::EchoResponse::ID_STATE_UNSPECIFIED:
      return Passed(kIdentityCheck, absl::StrCat(who, " (no --id to look for)"));
    case v1::EchoResponse::REFUSED:
      return Failed(kIdentityCheck, absl::StrCat(who, "; ", echo.id_detail()),
                    "choose the --id that the credentials are for");
    case v1::EchoResponse::LIVE:
      return Failed(kIdentityCheck,
                    absl::StrCat(who, "; a live worker (", echo.id_detail(), ") has the id ", id),
                    "choose another --id, or stop that worker; if it died a moment ago, its lease "
                    "ends by itself");
    case v1::EchoResponse::LOST:
    case v1::EchoResponse::LEFT:
      return Passed(kIdentityCheck, absl::StrCat(who, "; ", id, " comes back to this run"));
    default:
      break;
  }
  if (echo.max_workers() > 0 && echo.live_workers() >= echo.max_workers()) {
    return Failed(kIdentityCheck,
                  absl::StrCat(who, "; all ", echo.max_workers(), " places of the run are taken"),
                  "wait until a worker leaves, or start the run anew with a larger "
                  "membership.max_workers");
  }
  return Passed(kIdentityCheck, absl::StrCat(who, "; ", id, " is free, ", echo.live_workers(),
                                             " of ", echo.max_workers(), " places are taken"));
}

CheckResult JudgeVersion(const v1::EchoResponse& echo) {
  const auto describe = [](absl::string_view software, uint32_t wire) {
    return absl::StrCat(software, " (wire version ", wire, ")");
  };
  const std::string ours = describe(kSoftwareVersion, kWireVersion);
  const std::string theirs = describe(echo.software_version(), echo.wire_version());
  CheckResult result =
      echo.wire_version() == kWireVersion
          ? Passed(kVersionCheck, ours == theirs ? absl::StrCat(ours, " on both sides")
                                                 : absl::StrCat(ours, " here, ", theirs,
                                                                " at the coordinator: they fit"))
          : Failed(kVersionCheck, absl::StrCat(ours, " here, ", theirs, " at the coordinator"),
                   absl::StrCat("install release ", echo.software_version(), " here"));
  result.values = {{"wire_version", kWireVersion, "1"},
                   {"coordinator_wire_version", static_cast<double>(echo.wire_version()), "1"}};
  return result;
}

CheckResult JudgeConfiguration(const absl::StatusOr<v1::DescribeResponse>& description,
                               std::optional<UnderstoodRun>& run) {
  constexpr char kSameRelease[] = "install the coordinator's release here";
  if (!description.ok()) {
    return Failed(kConfigurationCheck, description.status().message(), "see the coordinator's log");
  }
  v1::RunConfig config = description->config();
  if (description->awaits_model() || config.has_tensors()) {
    return Failed(kConfigurationCheck,
                  description->awaits_model()
                      ? "the run waits for the first site to bring its model"
                      : std::string(CheckOwnModel(config).message()),
                  "join with the Python package (docs/pytorch.md)");
  }
  const absl::StatusOr<ConfigWarnings> complete = CompleteRunConfig(config);
  if (!complete.ok()) {
    return Failed(kConfigurationCheck,
                  absl::StrCat("this release does not take the run's configuration: ",
                               complete.status().message()),
                  kSameRelease);
  }
  absl::StatusOr<FragmentPlan> plan = FragmentPlan::Create(config);
  if (RunConfigHash(config) != description->config_hash() || !plan.ok() ||
      plan->hash() != description->plan_hash()) {
    return Failed(kConfigurationCheck,
                  absl::StrCat("run ", description->run_id(), ": this release reads the ",
                               RunConfigHash(config) != description->config_hash()
                                   ? "configuration"
                                   : "model and its cut into fragments",
                               " differently"),
                  kSameRelease);
  }
  const std::string preset =
      config.model().preset().empty() ? "" : absl::StrCat(config.model().preset(), ", ");
  CheckResult result = Passed(
      kConfigurationCheck,
      absl::StrCat("run ", description->run_id(), ": ", preset, plan->parameters(),
                   " parameters in ", plan->fragments(), " fragment",
                   plan->fragments() == 1 ? "" : "s", ", ", config.train().steps(), " steps"));
  result.values = {{"parameters", static_cast<double>(plan->parameters()), "1"},
                   {"fragments", static_cast<double>(plan->fragments()), "1"},
                   {"steps", static_cast<double>(config.train().steps()), "1"}};
  run.emplace(UnderstoodRun{std::move(config), *std::move(plan)});
  return result;
}

CheckResult JudgeClock(std::span<const EchoSample> samples) {
  const EchoSample& best = *std::ranges::min_element(samples, {}, &EchoSample::round_trip);
  const absl::Duration skew =
      best.sent + best.round_trip / 2 - absl::FromUnixMicros(best.response.unix_us());
  const absl::Duration size = absl::AbsDuration(skew);
  const std::string finding =
      size <= best.round_trip / 2
          ? absl::StrCat("agrees with the coordinator's to within ",
                         FormatTime(best.round_trip / 2))
          : absl::StrCat(FormatTime(size), skew > absl::ZeroDuration() ? " ahead of" : " behind",
                         " the coordinator's");
  CheckResult result =
      size < kTolerableSkew
          ? Passed(kClockCheck, finding)
          : Warned(kClockCheck, finding,
                   "set both clocks by NTP: certificates are judged and logs compared by them");
  result.values = {{"skew", absl::ToDoubleSeconds(skew), "s"},
                   {"uncertainty", absl::ToDoubleSeconds(best.round_trip / 2), "s"}};
  return result;
}

CheckResult JudgeRoundTrip(std::span<const EchoSample> samples, absl::Duration tcp_rtt) {
  const std::vector<absl::Duration> times = SortedRoundTrips(samples);
  const absl::Duration median = times[times.size() / 2];
  std::string finding = absl::StrCat(FormatTime(times.front()), " at best, ", FormatTime(median),
                                     " in the median of ", times.size(), " calls");
  std::vector<Measured> values = {{"round_trip_min", absl::ToDoubleSeconds(times.front()), "s"},
                                  {"round_trip_median", absl::ToDoubleSeconds(median), "s"}};
  if (tcp_rtt > absl::ZeroDuration()) {
    absl::StrAppend(&finding, "; ", FormatTime(tcp_rtt), " by TCP");
    values.push_back({"round_trip_tcp", absl::ToDoubleSeconds(tcp_rtt), "s"});
  }
  CheckResult result = Passed(kRoundTripCheck, finding);
  result.values = std::move(values);
  return result;
}

namespace {

constexpr char kNameCheck[] = "name";
constexpr char kTcpCheck[] = "tcp";
constexpr char kProtocolCheck[] = "protocol";
constexpr char kCertificateCheck[] = "certificates";

}  // namespace

CheckResult JudgeNames(const std::string& address,
                       const absl::StatusOr<std::vector<TcpAddress>>& addresses,
                       absl::Duration time, const ProxySetting& proxy) {
  if (!addresses.ok() && proxy.used) {
    return Warned(kNameCheck, absl::StrCat(addresses.status().message(), ", but ", proxy.finding),
                  proxy.remedy);
  }
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
                              const std::string& own_file, absl::Time now,
                              absl::string_view renewal) {
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
    const std::string warning = ExpiryWarning(*own, own_file, now, renewal);
    absl::StrAppend(&remedy, remedy.empty() || warning.empty() ? "" : "; ", warning);
  }
  CheckResult result = remedy.empty() ? Passed(kCertificateCheck, finding)
                                      : Warned(kCertificateCheck, finding, remedy);
  result.values = std::move(values);
  return result;
}

}  // namespace causeway::worker
