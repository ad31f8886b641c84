#include "common/rpc/status.h"

#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"

namespace causeway {
namespace {

// HTTP/2 carries a status in its trailers, whose size is limited.
constexpr size_t kMaxStatusTextBytes = 2048;
constexpr char kWayUrl[] = "causeway/made_on_the_way";
constexpr char kStrangeUrl[] = "causeway/strange";
constexpr char kRenewalUrl[] = "causeway/renewal";
constexpr char kOwnRunUrl[] = "causeway/own_run";
constexpr char kRunKey[] = "causeway-run";

// A google.rpc.Status {code, message: "causeway"}, as gRPC's trailer grpc-status-details-bin holds:
// other tools can read it, and it is nobody's but ours.
std::string Mark(int code) {
  return absl::StrCat(std::string{'\x08', static_cast<char>(code), '\x12', '\x08'}, "causeway");
}

std::string RunMark(absl::string_view run_id) {
  return HashToHex(
      TreeHash(std::span(reinterpret_cast<const uint8_t*>(run_id.data()), run_id.size())));
}

bool IsAccessRefused(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status);
}

// By themselves neither gRPC nor proxies make them.
bool IsStrange(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

// What to look at, by what gRPC says; empty where its own words are all there is to say.
absl::string_view Hint(absl::StatusCode code, absl::string_view message) {
  if (absl::StrContains(message, "status: 413")) {
    return "; a proxy on the way limits how much one call may carry: nginx needs "
           "client_max_body_size 0 (docs/links.md, Proxies)";
  }
  if (absl::StrContains(message, "RST_STREAM")) {
    return "; a proxy on the way ended the call: its connection to the coordinator broke, nothing "
           "came for its time-out, or the call carried more than it allows (nginx: "
           "client_max_body_size 0; docs/links.md, Proxies)";
  }
  if (code == absl::StatusCode::kUnimplemented || absl::StrContains(message, "http2 header")) {
    return "; whatever answers there is no coordinator, or a proxy that has not reached it";
  }
  return "; no coordinator's own answer: a proxy on the way made it, or one of an older release";
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.raw_code()),
          std::string(status.message().substr(0, kMaxStatusTextBytes)), Mark(status.raw_code())};
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  absl::Status result(code, status.error_message());
  if (status.ok() || status.error_details() == Mark(status.error_code())) return result;
  if (!IsRetryable(result)) {
    result = absl::UnavailableError(absl::StrCat(absl::StatusCodeToString(code), ": ",
                                                 status.error_message(),
                                                 Hint(code, status.error_message())));
  }
  result.SetPayload(kWayUrl, absl::Cord());
  if (IsStrange(code)) result.SetPayload(kStrangeUrl, absl::Cord());
  return result;
}

void TellRun(grpc::ServerContextBase& context, absl::string_view run_id) {
  context.AddTrailingMetadata(kRunKey, RunMark(run_id));
}

absl::Status FromGrpcStatus(const grpc::Status& status, const grpc::ClientContext& context,
                            absl::string_view run_id) {
  absl::Status result = FromGrpcStatus(status);
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto told = metadata.find(kRunKey);
  const bool is_own =
      told != metadata.end() &&
      absl::string_view(told->second.data(), told->second.size()) == RunMark(run_id);
  if (is_own && IsAccessRefused(result)) result.SetPayload(kOwnRunUrl, absl::Cord());
  return result;
}

bool MayBeAnothers(const absl::Status& status) {
  // The own coordinator knows whom it has let in; that it expects something else is an old copy's.
  return absl::IsFailedPrecondition(status) || status.GetPayload(kStrangeUrl).has_value() ||
         (IsAccessRefused(status) && !status.GetPayload(kOwnRunUrl).has_value());
}

absl::Status Renewal() {
  absl::Status status =
      absl::UnavailableError("its connection is made anew: the certificate has changed");
  status.SetPayload(kRenewalUrl, absl::Cord());
  return status;
}

bool IsRenewal(const absl::Status& status) { return status.GetPayload(kRenewalUrl).has_value(); }

bool MadeOnTheWay(const absl::Status& status) { return status.GetPayload(kWayUrl).has_value(); }

bool IsRetryable(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kDeadlineExceeded:
      return true;
    default:
      return false;
  }
}

bool NextStartMayPass(const absl::Status& status) {
  return IsRetryable(status) || absl::IsInternal(status) || absl::IsAlreadyExists(status);
}

}  // namespace causeway
