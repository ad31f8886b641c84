#include "worker/member/joining.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/params/run_config.h"
#include "common/transfer/wire.h"

namespace causeway::worker {

absl::Status CheckWireVersion(const v1::DescribeResponse& run) {
  if (run.wire_version() != kWireVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the coordinator speaks wire version ", run.wire_version(), " (software ",
                     run.software_version(), "), this worker version ", kWireVersion, " (software ",
                     kSoftwareVersion, "): install the same version"));
  }
  return absl::OkStatus();
}

absl::StatusOr<FragmentPlan> CheckRun(const v1::DescribeResponse& run, bool any_model) {
  RETURN_IF_ERROR(CheckWireVersion(run));
  if (run.awaits_model()) {
    return absl::FailedPreconditionError(
        "this run waits for the first site to bring its model, which causeway-worker cannot: join "
        "with the Python package (docs/pytorch.md), or start the coordinator with a model in its "
        "configuration");
  }
  v1::RunConfig config = run.config();
  RETURN_IF_ERROR(Annotate(CompleteRunConfig(config).status(), "the coordinator's configuration"));
  if (RunConfigHash(config) != run.config_hash()) {
    return absl::FailedPreconditionError(
        "the coordinator's configuration does not hash to what it announces: its software reads "
        "the configuration differently; install the same version");
  }
  if (!any_model) RETURN_IF_ERROR(CheckOwnModel(config));
  return FragmentPlan::Create(config);
}

absl::Status CheckIdentity(const ChannelSecurity& security, const std::string& worker_id) {
  if (!security.certificate.has_value()) return absl::OkStatus();
  const std::optional<Identity>& identity = security.certificate->identity;
  if (!identity.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--tls_cert (", security.certificate->subject,
        ") names no identity: expected one URI causeway://RUN/worker/", worker_id,
        " among its alternative names (deploy/make_certificates worker ", worker_id, ")"));
  }
  if (identity->role == Role::kWorker && identity->name == worker_id) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--tls_cert is that of ", RoleName(identity->role),
                                                 " ", identity->name, ", and --id is ", worker_id,
                                                 ": use the certificate of worker ", worker_id));
}

}  // namespace causeway::worker
