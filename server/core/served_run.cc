#include "server/core/served_run.h"

#include "absl/container/flat_hash_map.h"
#include "common/params/run_config.h"
#include "common/transfer/wire.h"

namespace causeway::server {
namespace {

constexpr int64_t kChunkBytes = kTreeLeafBytes;
constexpr int64_t kValueBytes = sizeof(float);

float ValueAt(const std::string& bytes, int64_t index) {
  float value = 0;
  std::memcpy(&value, bytes.data() + index * kValueBytes, sizeof(value));
  return value;
}

// INVALID_ARGUMENT, naming the first difference, unless both are the same table.
absl::Status CheckSameTable(const v1::TensorTable& run, const v1::TensorTable& brought) {
  const auto text = [](const v1::TensorTable& table, int i) {
    return i < table.tensor_size() ? table.tensor(i).ShortDebugString() : std::string("nothing");
  };
  for (int i = 0; i < std::max(run.tensor_size(), brought.tensor_size()); ++i) {
    if (text(run, i) == text(brought, i)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", i, " must be as in the run's configuration, ", text(run, i),
                     "; it is ", text(brought, i).substr(0, 600)));
  }
  return absl::OkStatus();
}

}  // namespace

std::string ModelAssembly::PlaceOf(int64_t value) const {
  for (const TensorInfo& tensor : RunTensors(config_)) {
    if (value < tensor.size()) return absl::StrCat(tensor.name, ", index ", value);
    value -= tensor.size();
  }
  return "beyond the tensors";
}

absl::Status ModelAssembly::Add(v1::ModelChunk chunk) {
  std::string& data = *chunk.mutable_data();
  const int64_t expected = std::min(kChunkBytes, total_bytes_ - received_bytes_);
  if (expected == 0 || chunk.offset() != received_bytes_ || std::ssize(data) != expected) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the next chunk of the model must be ", expected, " bytes at offset ", received_bytes_,
        " of ", total_bytes_, "; it is ", data.size(), " at ", chunk.offset()));
  }
  for (int64_t i = 0; i < expected / kValueBytes; ++i) {
    if (std::isfinite(ValueAt(data, i))) continue;
    return absl::InvalidArgumentError(absl::StrCat("initial values must be finite; the one of ",
                                                   PlaceOf(received_bytes_ / kValueBytes + i),
                                                   " is ", ValueAt(data, i)));
  }
  hasher_.Update({reinterpret_cast<const uint8_t*>(data.data()), data.size()});
  received_bytes_ += expected;
  chunks_.push_back(std::move(data));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> ModelAssembly::Finish(const FragmentPlan& plan) {
  if (received_bytes_ != total_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model must be ", total_bytes_, " bytes; ", received_bytes_, " came"));
  }
  const uint64_t hash = hasher_.Finish();
  if (hash != tree_hash_) {
    return absl::DataLossError(absl::StrCat("the model was damaged on its way: its values hash to ",
                                            HashToHex(hash), ", its header says ",
                                            HashToHex(tree_hash_), "; bring it again"));
  }
  absl::flat_hash_map<absl::string_view, int64_t> offsets;
  for (const PlacedTensor& placed : plan.tensors()) offsets[placed.info.name] = placed.offset;
  std::vector<float> arena(static_cast<size_t>(plan.arena_size()));
  size_t taken = 0;  // Bytes of the first chunk.
  for (const TensorInfo& tensor : RunTensors(config_)) {
    auto* out = reinterpret_cast<char*>(arena.data() + offsets.at(tensor.name));
    auto left = static_cast<size_t>(tensor.size()) * sizeof(float);
    while (left > 0) {
      const std::string& chunk = chunks_.front();
      const size_t bytes = std::min(left, chunk.size() - taken);
      std::memcpy(out, chunk.data() + taken, bytes);
      out += bytes;
      left -= bytes;
      taken += bytes;
      if (taken == chunk.size()) {
        chunks_.pop_front();
        taken = 0;
      }
    }
  }
  received_bytes_ = 0;
  return arena;
}

absl::StatusOr<Coordinator*> ServedRun::Begun() const {
  if (coordinator() != nullptr) return coordinator();
  return absl::FailedPreconditionError(
      "the run waits for the first site to bring its model: a site that joins with the Python "
      "package does (docs/pytorch.md)");
}

const v1::RunConfig& ServedRun::config() const {
  return coordinator() != nullptr ? coordinator()->config() : config_;
}

const std::string& ServedRun::run_id() const {
  return coordinator() != nullptr ? coordinator()->run_id() : run_id_;
}

v1::DescribeResponse ServedRun::Describe() const {
  if (coordinator() != nullptr) return coordinator()->Describe();
  v1::DescribeResponse response;
  response.set_run_id(run_id_);
  *response.mutable_config() = config_;
  response.set_wire_version(kWireVersion);
  response.set_software_version(kSoftwareVersion);
  response.set_awaits_model(true);
  return response;
}

v1::RunStatus ServedRun::GetStatus() const {
  if (coordinator() != nullptr) return coordinator()->GetStatus();
  v1::RunStatus status;
  status.set_run_id(run_id_);
  *status.mutable_config() = config_;
  return status;
}

absl::Status ServedRun::Health() const {
  return coordinator() == nullptr ? absl::OkStatus() : coordinator()->Health();
}

absl::Status ServedRun::Shutdown() {
  {
    absl::MutexLock lock(&mutex_);
    shut_down_ = true;
  }
  return coordinator() == nullptr ? absl::OkStatus() : coordinator()->Shutdown();
}

absl::Status ServedRun::HasItsModel() const {
  return absl::AlreadyExistsError(
      absl::StrCat("the run ", run_id(), " has its model: describe it again, and join"));
}

absl::StatusOr<BroughtModel> ServedRun::AdmitModel(const v1::ModelHeader& header) const {
  if (coordinator() != nullptr) return HasItsModel();
  RETURN_IF_ERROR(CheckName("worker_id", header.worker_id()));
  RETURN_IF_ERROR(CheckRunId("model", header.run_id(), run_id_));
  RETURN_IF_ERROR(CheckTensorTable(header.tensors()));
  BroughtModel model;
  model.worker_id = header.worker_id();
  model.config = config_;
  if (config_.has_model() || config_.has_tensors()) {
    RETURN_IF_ERROR(CheckSameTable(MakeTensorTable(RunTensors(config_)), header.tensors()));
  } else {
    *model.config.mutable_tensors() = header.tensors();
  }
  RETURN_IF_ERROR(CompleteRunConfig(model.config).status());
  ASSIGN_OR_RETURN(model.plan, FragmentPlan::Create(model.config));
  const int64_t bytes = model.plan.parameters() * int64_t{sizeof(float)};
  if (header.total_bytes() != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("total_bytes must be 4 times the ", model.plan.parameters(),
                     " values of the tensors, ", bytes, "; it is ", header.total_bytes()));
  }
  return model;
}

absl::Status ServedRun::BeginWith(BroughtModel model, std::vector<float> values,
                                  const std::function<void(Coordinator&)>& ready) {
  absl::MutexLock lock(&mutex_);
  if (coordinator() != nullptr) return HasItsModel();
  if (shut_down_) return absl::UnavailableError("the coordinator is shutting down");
  absl::StatusOr<std::unique_ptr<Coordinator>> begun = begin_(model, std::move(values));
  // A disk can be mended, and the site tries again.
  if (IsFatal(begun.status())) {
    return absl::UnavailableError(
        absl::StrCat("the coordinator could not begin the run: ", begun.status().message()));
  }
  ASSIGN_OR_RETURN(coordinator_, std::move(begun));
  ready(*coordinator_);
  begun_.store(coordinator_.get(), std::memory_order_release);
  return absl::OkStatus();
}

}  // namespace causeway::server
