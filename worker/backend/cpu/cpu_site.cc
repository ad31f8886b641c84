#include "worker/backend/cpu/cpu_site.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway::worker {
namespace {

// Values that one task adds.
constexpr int64_t kAddedValues = 64 * 1024;

struct LossBytes {
  double cross_entropy = 0;
  int64_t tokens = 0;
};

size_t LossesSize(int64_t micro_batches) {
  return static_cast<size_t>(micro_batches) * sizeof(LossBytes);
}

int64_t MicroBatchesOf(const v1::TrainConfig& train) {
  return train.batch_sequences() / train.micro_batch_sequences();
}

}  // namespace

RemoteHelpers::RemoteHelpers(const v1::RunConfig& config, const FragmentPlan& plan,
                             ThreadPool* pool, std::vector<SiteLink*> links)
    : micro_batches_(MicroBatchesOf(config.train())),
      arena_(static_cast<size_t>(plan.arena_size())),
      pool_(pool),
      links_(std::move(links)) {}

absl::Status RemoteHelpers::Begin(std::span<const float> parameters, const StepTokens& tokens) {
  calls_.clear();
  const std::span<const uint8_t> bytes = {reinterpret_cast<const uint8_t*>(parameters.data()),
                                          parameters.size_bytes()};
  for (int i = 0; i < count(); ++i) {
    SiteLink& link = *links_[static_cast<size_t>(i)];
    RETURN_IF_ERROR(link.Call(kSiteParameters, 0, 0, bytes).status());
    const RankRange range = {.first = i + 1, .count = 1, .ranks = count() + 1};
    ASSIGN_OR_RETURN(const uint64_t call, link.Call(kSiteGradient, 0, 0, tokens.Share(range)));
    calls_.push_back(call);
  }
  return absl::OkStatus();
}

absl::Status RemoteHelpers::Finish(std::span<float> gradients, std::span<TokenLoss> losses) {
  const int processes = count() + 1;
  const int64_t each = micro_batches_ / processes;
  for (size_t i = 0; i < links_.size(); ++i) {
    absl::StatusOr<ByteBuffer> answer = links_[i]->Await(calls_[i]);
    RETURN_IF_ERROR(OfPeer(*links_[i], answer.status()));
    const size_t head = LossesSize(each);
    if (answer->size() != head + arena_ * sizeof(float)) {
      return absl::DataLossError(absl::StrCat(links_[i]->peer(), " sends a gradient of ",
                                              answer->size(), " bytes; expected ",
                                              head + arena_ * sizeof(float)));
    }
    for (int64_t k = 0; k < each; ++k) {
      LossBytes loss;
      std::memcpy(&loss, answer->data() + LossesSize(k), sizeof(loss));
      TokenLoss& to = losses[static_cast<size_t>(k * processes) + i + 1];
      to.cross_entropy = loss.cross_entropy;
      to.tokens = loss.tokens;
    }
    const auto* const theirs = reinterpret_cast<const float*>(answer->data() + head);
    const auto values = static_cast<int64_t>(arena_);
    pool_->ParallelFor((values + kAddedValues - 1) / kAddedValues, [&](int64_t task) {
      const int64_t begin = task * kAddedValues;
      const int64_t end = std::min(begin + kAddedValues, values);
      float* const sum = gradients.data();
      for (int64_t at = begin; at < end; ++at) sum[at] += theirs[at];
    });
  }
  return absl::OkStatus();
}

StepServer::StepServer(SiteLink& link, const v1::RunConfig& config, const FragmentPlan& plan,
                       ThreadPool* pool, const RankRange& range)
    : link_(link),
      config_(config),
      range_(range),
      arena_(static_cast<size_t>(plan.arena_size())),
      layout_(config.train(), config.model()),
      model_(config.model(), plan, config.train().micro_batch_sequences(), pool) {
  const size_t tokens = static_cast<size_t>(config.train().micro_batch_sequences()) *
                        static_cast<size_t>(config.model().sequence_length());
  inputs_.resize(tokens);
  targets_.resize(tokens);
  if (config.train().document_masking()) document_starts_.resize(tokens);
  answer_.resize(LossesSize(MicroBatchesOf(config.train()) / range.ranks) + arena_ * sizeof(float));
}

absl::StatusOr<bool> StepServer::Handle(SiteCall& call) {
  if (call.method == kSiteParameters) {
    parameters_ = std::move(call.bytes);
    return true;
  }
  if (call.method != kSiteGradient) return false;
  const absl::Status status = Compute(call.bytes);
  RETURN_IF_ERROR(
      link_.Answer(call.id, status, status.ok() ? std::span(answer_) : std::span<uint8_t>()));
  return true;
}

absl::Status StepServer::Compute(std::span<const uint8_t> share) {
  if (parameters_.size() != arena_ * sizeof(float)) {
    return absl::InvalidArgumentError(absl::StrCat("the model has ", arena_, " parameters; ",
                                                   parameters_.size() / sizeof(float), " came"));
  }
  ASSIGN_OR_RETURN(const MicroBatchReader read, layout_.ReaderOf(share, range_));
  const int64_t micro_batches = MicroBatchesOf(config_.train());
  const int64_t each = micro_batches / range_.ranks;
  const std::span<const float> parameters = {reinterpret_cast<const float*>(parameters_.data()),
                                             arena_};
  const std::span<float> gradients = {reinterpret_cast<float*>(answer_.data() + LossesSize(each)),
                                      arena_};
  for (int64_t k = 0; k < each; ++k) {
    RETURN_IF_ERROR(read(k * range_.ranks + range_.first, {inputs_, targets_, document_starts_}));
    const TokenLoss loss = model_.ForwardBackward(parameters, inputs_, targets_,
                                                  1.0F / static_cast<float>(micro_batches), k > 0,
                                                  gradients, document_starts_);
    const LossBytes bytes = {loss.cross_entropy, loss.tokens};
    std::memcpy(answer_.data() + LossesSize(k), &bytes, sizeof(bytes));
  }
  return absl::OkStatus();
}

}  // namespace causeway::worker
