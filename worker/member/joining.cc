#include <grpcpp/client_context.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "common/base/checksum.h"
#include "common/params/run_config.h"
#include "common/rpc/status.h"
#include "common/transfer/wire.h"
#include "worker/member/joining.h"

namespace causeway::worker {
namespace {

using Bytes = std::span<const uint8_t>;

// Calls `take` with all the values' bytes in order, until it returns false.
absl::Status ForAllBytes(const ModelToBring& model, const std::vector<TensorInfo>& tensors,
                         const std::function<bool(Bytes)>& take) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (model.is_cancelled()) return absl::CancelledError("bringing the model was cancelled");
    const std::span<const float> values = model.values(static_cast<int>(i));
    if (std::ssize(values) != tensors[i].size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the tensor ", tensors[i].name, " is ", ShapeText(tensors[i]),
                       " and must have ", tensors[i].size(), " values; it has ", values.size()));
    }
    if (!take({reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()})) break;
  }
  return absl::OkStatus();
}

// Waits until the coordinator has taken the header, or the stream has ended.
int64_t HeldBytes(grpc::ClientWriter<v1::BringModelRequest>& stream,
                  const grpc::ClientContext& context) {
  stream.WaitForInitialMetadata();
  const auto& metadata = context.GetServerInitialMetadata();
  const auto found = metadata.find(kHeldBytesKey);
  int64_t held = 0;
  if (found == metadata.end() ||
      !absl::SimpleAtoi(absl::string_view(found->second.data(), found->second.size()), &held)) {
    return 0;
  }
  return std::max<int64_t>(0, held);
}

}  // namespace

absl::Status BringModel(v1::Session::Stub& stub, const ModelToBring& model, int64_t* sent) {
  if (sent != nullptr) *sent = 0;
  RETURN_IF_ERROR(CheckTensorTable(model.tensors));
  v1::RunConfig config;
  *config.mutable_tensors() = model.tensors;
  const std::vector<TensorInfo> tensors = RunTensors(config);
  TreeHasher hasher;
  RETURN_IF_ERROR(ForAllBytes(model, tensors, [&](Bytes bytes) {
    hasher.Update(bytes);
    return true;
  }));

  grpc::ClientContext context;
  v1::BringModelResponse response;
  const std::unique_ptr<grpc::ClientWriter<v1::BringModelRequest>> stream =
      stub.BringModel(&context, &response);
  v1::BringModelRequest first;
  v1::ModelHeader& header = *first.mutable_header();
  header.set_run_id(model.run_id);
  header.set_wire_version(kWireVersion);
  header.set_worker_id(model.worker_id);
  *header.mutable_tensors() = model.tensors;
  header.set_total_bytes(CountParameters(tensors) * int64_t{sizeof(float)});
  header.set_tree_hash(hasher.Finish());
  bool open = stream->Write(first);
  int64_t held = open ? HeldBytes(*stream, context) : 0;  // At the coordinator.

  v1::BringModelRequest message;
  std::string& data = *message.mutable_chunk()->mutable_data();
  int64_t offset = held;
  const auto send = [&] {
    message.mutable_chunk()->set_offset(offset);
    offset += std::ssize(data);
    open = stream->Write(message);
    if (open && sent != nullptr) *sent += std::ssize(data);
    data.clear();
  };
  const absl::Status read = ForAllBytes(model, tensors, [&](Bytes bytes) {
    const auto skipped = std::min<int64_t>(held, std::ssize(bytes));
    held -= skipped;
    bytes = bytes.subspan(static_cast<size_t>(skipped));
    while (open && !bytes.empty()) {
      const size_t size = std::min(bytes.size(), kChunkBytes - data.size());
      data.append(reinterpret_cast<const char*>(bytes.data()), size);
      bytes = bytes.subspan(size);
      if (data.size() < kChunkBytes) continue;
      if (model.is_cancelled()) context.TryCancel();
      send();
    }
    return open;
  });
  if (!read.ok()) {
    context.TryCancel();
  } else {
    if (open && !data.empty()) send();
    if (open) stream->WritesDone();
  }
  // Says why, if the stream broke.
  const absl::Status status = FromGrpcStatus(stream->Finish());
  return read.ok() ? status : read;
}

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

absl::StatusOr<int64_t> BytesPerSecond(absl::string_view name, double mbit) {
  constexpr double kMost = 1e6;
  if (mbit == 0) return 0;
  // Slower than that, the coordinator takes what comes for something that does not move.
  if (!(mbit >= 1 && mbit <= kMost)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must be 0 or 1 .. ", kMost, "; it is ", mbit));
  }
  return static_cast<int64_t>(mbit * 1e6 / 8);
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

absl::StatusOr<ReachedRun> ReachRun(const MemberOptions& options) {
  ASSIGN_OR_RETURN(ReachedRun reached, ApproachRun(options.coordinator, options.security));
  if (!options.worker_id.empty()) {
    RETURN_IF_ERROR(CheckIdentity(reached.security, options.worker_id));
  }
  ASSIGN_OR_RETURN(
      reached.run,
      DescribeOrExplain(*v1::Session::NewStub(reached.channels->Now()), options.coordinator,
                        options.security, options.connect_timeout, /*region_id=*/"", options.stop));
  RETURN_IF_ERROR(CheckWireVersion(reached.run));
  return reached;
}

}  // namespace causeway::worker
