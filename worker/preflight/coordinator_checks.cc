#include "worker/preflight/checks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/params/run_config.h"
#include "common/transfer/wire.h"
#include "worker/member/joining.h"

namespace causeway::worker {
namespace {

constexpr char kWayCheck[] = "way";
constexpr char kCertificateCheck[] = "certificates";
constexpr char kAnswerCheck[] = "coordinator";
constexpr char kIdentityCheck[] = "identity";
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

CheckResult JudgeConfiguration(const absl::StatusOr<v1::DescribeResponse>& description,
                               std::optional<UnderstoodRun>& run) {
  if (!description.ok()) {
    return Failed(kConfigurationCheck, description.status().message(), "see the coordinator's log");
  }
  absl::StatusOr<FragmentPlan> plan = CheckRun(*description, /*any_model=*/false);
  if (plan.ok() && plan->hash() != description->plan_hash()) {
    plan = absl::FailedPreconditionError(
        absl::StrCat("run ", description->run_id(),
                     ": this release reads the model and its cut into fragments differently"));
  }
  v1::RunConfig config = description->config();
  // As CheckRun did with its own copy. A coordinator may leave fields out.
  const absl::Status complete = CompleteRunConfig(config).status();
  if (plan.ok() && !complete.ok()) plan = complete;
  if (!plan.ok()) {
    return Failed(kConfigurationCheck, plan.status().message(),
                  description->awaits_model() || config.has_tensors()
                      ? "join with the Python package (docs/pytorch.md)"
                      : "install the coordinator's release here");
  }
  const std::string preset =
      config.model().preset().empty() ? "" : absl::StrCat(config.model().preset(), ", ");
  run.emplace(UnderstoodRun{config, *plan});
  return Passed(
      kConfigurationCheck,
      absl::StrCat("run ", description->run_id(), ": ", preset, plan->parameters(),
                   " parameters in ", plan->fragments(), " fragment",
                   plan->fragments() == 1 ? "" : "s", ", ", config.train().steps(), " steps"),
      {{"parameters", plan->parameters()},
       {"fragments", plan->fragments()},
       {"steps", config.train().steps()}});
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
  return PassedUnless(
      kClockCheck, finding,
      size < kTolerableSkew
          ? ""
          : "set both clocks by NTP: certificates are judged and logs compared by them",
      {{"skew", skew}, {"uncertainty", best.round_trip / 2}});
}

CheckResult JudgeRoundTrip(std::span<const EchoSample> samples, absl::Duration tcp_rtt) {
  const std::vector<absl::Duration> times = SortedRoundTrips(samples);
  const absl::Duration median = times[times.size() / 2];
  std::string finding = absl::StrCat(FormatTime(times.front()), " at best, ", FormatTime(median),
                                     " in the median of ", times.size(), " calls");
  std::vector<Measured> values = {{"round_trip_min", times.front()}, {"round_trip_median", median}};
  if (tcp_rtt > absl::ZeroDuration()) {
    absl::StrAppend(&finding, "; ", FormatTime(tcp_rtt), " by TCP");
    values.push_back({"round_trip_tcp", tcp_rtt});
  }
  return Passed(kRoundTripCheck, finding, std::move(values));
}

CheckResult JudgeWay(const Way& way) {
  if (way.open) return PassedUnless(kWayCheck, way.finding, way.remedy);
  return Failed(kWayCheck, way.finding,
                way.remedy.empty()
                    ? "check --coordinator; ask the coordinator's operator for its address"
                    : way.remedy);
}

CheckResult JudgeCertificates(const absl::StatusOr<Certificate>& server,
                              const std::optional<Certificate>& own, const std::string& own_file,
                              absl::Time now, absl::string_view renewal) {
  if (!server.ok()) {
    return Failed(kCertificateCheck, server.status().message(),
                  "without this handshake nothing else can work");
  }
  const absl::Duration server_left = server->not_after - now;
  std::string finding =
      absl::StrCat("the coordinator's (", server->subject, ") ends in ", FormatTime(server_left));
  std::string remedy;
  if (server_left < kExpiryWarning) {
    remedy = "the coordinator's operator should renew its certificate";
  }
  std::vector<Measured> values = {{"coordinator_certificate_left", server_left}};
  if (own.has_value()) {
    const absl::Duration own_left = own->not_after - now;
    absl::StrAppend(&finding, ", this site's in ", FormatTime(own_left));
    values.push_back({"own_certificate_left", own_left});
    const std::string warning = ExpiryWarning(*own, own_file, now, renewal);
    absl::StrAppend(&remedy, remedy.empty() || warning.empty() ? "" : "; ", warning);
  }
  return PassedUnless(kCertificateCheck, finding, remedy, std::move(values));
}

}  // namespace causeway::worker
