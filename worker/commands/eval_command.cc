// eval: what a stored model is worth on held-out text.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/params/fragment_plan.h"
#include "nlohmann/json.hpp"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/commands/commands.h"
#include "worker/data/dataset.h"
#include "worker/train/trainer.h"

ABSL_DECLARE_FLAG(std::string, data);
ABSL_DECLARE_FLAG(std::string, shard_format);
ABSL_FLAG(int, sequences, 64, "held-out windows, spread evenly");
ABSL_FLAG(bool, json, false, "JSON for programs");

namespace causeway::worker {
namespace {

using nlohmann::json;

// Windows at a time; a batch's memory is that of training.
constexpr int kBatch = 4;

// Tokens that are predicted: with document masking not every position has one.
absl::StatusOr<int64_t> CountTargets(const Dataset& dataset, const HeldOutWindows& windows,
                                     int64_t length) {
  int64_t counted = 0;
  std::vector<int32_t> inputs(static_cast<size_t>(length));
  std::vector<int32_t> targets(inputs.size());
  std::vector<int32_t> document_starts(windows.document_masking() ? inputs.size() : 0);
  for (int64_t i = 0; i < windows.size(); ++i) {
    RETURN_IF_ERROR(windows.Read(i, inputs, targets, document_starts));
    counted += std::ranges::count_if(targets, [](int32_t t) { return t >= 0; });
  }
  if (counted > 0) return counted;
  return absl::FailedPreconditionError(
      absl::StrCat("no held-out token in ", dataset.folder(), " is predicted in ", windows.size(),
                   " windows of ", length,
                   " tokens: with train.document_masking the first of a document never is; give "
                   "more --sequences, or longer documents"));
}

absl::Status EvaluateHeldOut(const StoredModel& stored, EvaluationModel& model, json& result) {
  const v1::ModelConfig& shape = stored.config.model();
  ASSIGN_OR_RETURN(const ShardFormat shard_format,
                   ParseShardFormat(absl::GetFlag(FLAGS_shard_format)));
  ASSIGN_OR_RETURN(const std::optional<DocumentMark> mark, GivenDocumentMark());
  ASSIGN_OR_RETURN(Dataset dataset,
                   Dataset::Open(*FileSystem::Real(), absl::GetFlag(FLAGS_data), shard_format));
  const bool masks = stored.config.train().document_masking();
  for (const std::string& sentence : dataset.CountsForNothing(mark.has_value(), masks)) {
    std::fprintf(stderr, "warning: %s\n", sentence.c_str());
  }
  if (masks) RETURN_IF_ERROR(dataset.FindDocuments(mark));
  RETURN_IF_ERROR(dataset.CheckVocabulary(shape.vocabulary_size()));
  ASSIGN_OR_RETURN(const HeldOutWindows windows,
                   HeldOutWindows::Create(dataset, shape.sequence_length(), shape.vocabulary_size(),
                                          absl::GetFlag(FLAGS_sequences), masks));
  // First: what can be refused is quick.
  ASSIGN_OR_RETURN(const int64_t targets, CountTargets(dataset, windows, shape.sequence_length()));
  ASSIGN_OR_RETURN(const double loss, EvaluateLoss(model, stored.parameters, windows));
  result["tokens"] = targets;
  result["loss"] = loss;
  result["perplexity"] = std::exp(loss);
  const double bytes_per_token = dataset.held_out_bytes_per_token();
  if (bytes_per_token > 0) result["bits_per_byte"] = loss / std::numbers::ln2 / bytes_per_token;
  return absl::OkStatus();
}

void PrintLine(const json& result) {
  std::printf("%.4f nats per token over %lld held-out tokens", result["loss"].get<double>(),
              static_cast<long long>(result["tokens"].get<int64_t>()));
  if (result.contains("bits_per_byte")) {
    std::printf(", %.4f bits per byte", result["bits_per_byte"].get<double>());
  }
  std::printf("\n");
}

// A model, and what it computes with.
struct Evaluated {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<CpuTransformer<float>> transformer;
  std::unique_ptr<EvaluationModel> model;
};

absl::StatusOr<Evaluated> MakeModel(const DeviceChoice& device, const v1::ModelConfig& shape,
                                    const FragmentPlan& plan) {
  Evaluated made;
  if (device.kind == DeviceChoice::Kind::kCuda) {
    auto model = MakeGpuEvaluation(device, shape, plan, kBatch, *FileSystem::Real());
    if (absl::IsResourceExhausted(model.status())) {
      return Annotate(model.status(), "this model does not fit the GPU: give --device=cpu");
    }
    RETURN_IF_ERROR(model.status());
    made.model = *std::move(model);
    return made;
  }
  ASSIGN_OR_RETURN(made.pool, MakeGivenPool());
  made.transformer = std::make_unique<CpuTransformer<float>>(shape, plan, kBatch, made.pool.get());
  made.model = std::make_unique<CpuEvaluationModel>(made.transformer.get());
  return made;
}

}  // namespace

absl::Status RunEval() {
  ASSIGN_OR_RETURN(DeviceChoice device, DevicesFromFlags());
  ASSIGN_OR_RETURN(device, ResolveDevices(device, *FileSystem::Real()));
  if (absl::GetFlag(FLAGS_data).empty()) {
    return absl::InvalidArgumentError("--data=SHARDS is required: what the model is evaluated on");
  }
  ASSIGN_OR_RETURN(const StoredModel stored, ReadGivenModel());
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(stored.config));
  ASSIGN_OR_RETURN(const Evaluated on, MakeModel(device, stored.config.model(), plan));
  json result = {{"model", GivenModelName()}};
  if (stored.step >= 0) result["step"] = stored.step;
  RETURN_IF_ERROR(EvaluateHeldOut(stored, *on.model, result));
  if (absl::GetFlag(FLAGS_json)) {
    std::printf("%s\n", result.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
  } else {
    PrintLine(result);
  }
  return absl::OkStatus();
}

}  // namespace causeway::worker
