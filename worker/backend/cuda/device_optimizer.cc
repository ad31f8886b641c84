#include "worker/backend/cuda/device_optimizer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/base/status_macros.h"
#include "common/optim/learning_rate.h"
#include "worker/backend/cuda/random_fill.h"

namespace causeway::worker::cuda {
namespace {

constexpr char kStateArena[] = "master weights and moments";
constexpr char kStateLower[] = "more GPUs (each keeps its share)";

// Values that kernels take at a time: what lies behind a tensor up to there are zeros, and stay so.
constexpr int64_t kWhole = 8;

int64_t RoundUp(int64_t value) { return (value + kWhole - 1) / kWhole * kWhole; }

template <typename T>
absl::StatusOr<T*> Upload(const std::vector<T>& values, DeviceMemory& memory, cudaStream_t stream) {
  ASSIGN_OR_RETURN(T* const to, memory.Allocate<T>("tables of slices", std::ssize(values), ""));
  RETURN_IF_ERROR(CheckCuda(
      cudaMemcpyAsync(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream),
      "copying a table of slices"));
  return to;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceOptimizer>> DeviceOptimizer::Create(
    const FragmentPlan& plan, const v1::TrainConfig& train, const ShardPlan& shards, int rank,
    LocalGroup* group, const DeviceArrays& arrays, DeviceMemory* memory, Gemm* gemm,
    cudaStream_t stream) {
  auto optimizer =
      std::unique_ptr<DeviceOptimizer>(new DeviceOptimizer(train, shards, rank, group, arrays));
  optimizer->Lay(plan);
  RETURN_IF_ERROR(optimizer->Allocate(*memory, gemm, stream));
  return optimizer;
}

void DeviceOptimizer::Lay(const FragmentPlan& plan) {
  for (const ShardPiece& piece : shards_.pieces(rank_)) {
    if (!norm_ranges_.empty() && norm_ranges_.back().second == piece.begin) {
      norm_ranges_.back().second = piece.end;
    } else {
      norm_ranges_.emplace_back(piece.begin, piece.end);
    }
  }
  for (const PlacedTensor& tensor : plan.tensors()) {
    if (train_.optimizer() == v1::TrainConfig::MUON && tensor.info.role == TensorRole::kMatrix) {
      LayMuon(tensor);
      continue;
    }
    const float decay = tensor.info.decays() ? static_cast<float>(train_.weight_decay()) : 0.0F;
    for (const ShardPiece& piece : shards_.pieces(rank_)) {
      const int64_t begin = std::max(piece.begin, tensor.offset);
      const int64_t end = std::min(piece.end, tensor.offset + RoundUp(tensor.info.size()));
      if (begin >= end) continue;
      AppendAdamWSlices(piece.offset + begin - piece.begin, begin, begin, end - begin, decay,
                        &adamw_slices_);
    }
  }
  // Side by side by shape, so that one batch of products does all matrices of a shape.
  for (Group& group : groups_) {
    group.batch.count = std::ssize(group.offsets);
    group.first = updates_size_;
    const int64_t size = group.batch.rows * group.batch.cols;
    const double shape = std::sqrt(std::max(
        1.0, static_cast<double>(group.batch.rows) / static_cast<double>(group.batch.cols)));
    for (const int64_t offset : group.offsets) {
      for (int rank = 0; rank < shards_.ranks(); ++rank) {
        for (const ShardPiece& piece : shards_.pieces(rank)) {
          const int64_t begin = std::max(piece.begin, offset);
          const int64_t end = std::min(piece.end, offset + size);
          if (begin >= end) continue;
          const int64_t update = updates_size_ + begin - offset;
          momenta_.push_back({update, end - begin, rank});
          if (rank != rank_) continue;
          AppendMuonSlices({.state = piece.offset + begin - piece.begin,
                            .gradient = begin,
                            .weight = begin,
                            .update = update,
                            .shape = shape},
                           end - begin, &muon_slices_);
        }
      }
      updates_size_ += size;
    }
    for (int rank = 0; rank < shards_.ranks(); ++rank) {
      const auto [first, last] = Share(group, rank);
      if (first < last) {
        orthogonalized_.push_back({group.first + first * size, (last - first) * size, rank});
      }
    }
  }
}

void DeviceOptimizer::LayMuon(const PlacedTensor& tensor) {
  const auto same = [&](const Group& group) {
    return group.batch.rows == tensor.info.rows && group.batch.cols == tensor.info.cols;
  };
  auto group = std::ranges::find_if(groups_, same);
  if (group == groups_.end()) {
    groups_.push_back(
        {.batch = {.rows = tensor.info.rows, .cols = tensor.info.cols}, .offsets = {}});
    group = groups_.end() - 1;
  }
  group->offsets.push_back(tensor.offset);
}

std::pair<int64_t, int64_t> DeviceOptimizer::Share(const Group& group, int rank) const {
  const int64_t ranks = shards_.ranks();
  return {group.batch.count * rank / ranks, group.batch.count * (rank + 1) / ranks};
}

absl::Status DeviceOptimizer::Allocate(DeviceMemory& memory, Gemm* gemm, cudaStream_t stream) {
  const int64_t size = shards_.shard_size(rank_);
  for (float** moments : {&m_, &v_}) {
    ASSIGN_OR_RETURN(*moments, memory.Allocate<float>(kStateArena, size, kStateLower));
    RETURN_IF_ERROR(
        CheckCuda(cudaMemsetAsync(*moments, 0, static_cast<size_t>(size) * sizeof(float), stream),
                  "clearing the moments"));
  }
  ASSIGN_OR_RETURN(device_adamw_slices_, Upload(adamw_slices_, memory, stream));
  ASSIGN_OR_RETURN(device_muon_slices_, Upload(muon_slices_, memory, stream));
  ASSIGN_OR_RETURN(constants_, memory.Allocate<Constants>("tables of slices", 1, ""));
  ASSIGN_OR_RETURN(host_constants_, PinnedBuffer<Constants>::Create(1));
  int64_t scratch = 1;
  for (const auto& [begin, end] : norm_ranges_) {
    scratch = std::max(scratch, SumOfSquaresScratch(end - begin));
  }
  ASSIGN_OR_RETURN(sums_, memory.Allocate<double>("partial sums", shards_.ranks(), ""));
  ASSIGN_OR_RETURN(norm_scratch_, memory.Allocate<double>("partial sums", scratch, ""));
  ASSIGN_OR_RETURN(norm_, memory.Allocate<GradientNorm>("partial sums", 1, ""));
  if (groups_.empty()) return CheckCuda(cudaStreamSynchronize(stream), "preparing the optimizer");

  ASSIGN_OR_RETURN(updates_, memory.Allocate<__nv_bfloat16>("Muon's updates", updates_size_,
                                                            "train.optimizer: ADAMW"));
  std::vector<MatrixBatch> batches;
  for (const Group& group : groups_) {
    const auto [first, last] = Share(group, rank_);
    batches.push_back({group.batch.rows, group.batch.cols, last - first});
  }
  ASSIGN_OR_RETURN(newton_schulz_, NewtonSchulz::Create(batches, &memory, gemm));
  return CheckCuda(cudaStreamSynchronize(stream), "preparing the optimizer");
}

absl::Status DeviceOptimizer::ComputeNorm(cudaStream_t stream) {
  bool accumulate = false;
  for (const auto& [begin, end] : norm_ranges_) {
    SumOfSquares(end - begin, arrays_.gradients + begin, accumulate, sums_ + rank_, norm_scratch_,
                 stream);
    accumulate = true;
  }
  if (!accumulate) {
    RETURN_IF_ERROR(CheckCuda(cudaMemsetAsync(sums_ + rank_, 0, sizeof(double), stream),
                              "clearing a sum of squares"));
  }
  if (group_ != nullptr) {
    std::vector<int64_t> bounds(static_cast<size_t>(shards_.ranks() + 1));
    std::iota(bounds.begin(), bounds.end(), int64_t{0});
    RETURN_IF_ERROR(group_->AllGather(sums_, bounds, GroupType::kDouble, stream));
  }
  FinishGradientNorm(shards_.ranks(), sums_, train_.clip_norm(), norm_, stream);
  return CheckLaunches("the gradient's norm");
}

double DeviceOptimizer::LearningRate(int64_t step) const {
  return train_.learning_rate() * LearningRateFactor(step, train_.steps(), train_.warmup_steps(),
                                                     train_.final_learning_rate_fraction());
}

absl::Status DeviceOptimizer::Update(int64_t step, int64_t update, cudaStream_t stream) {
  const double schedule = LearningRateFactor(step, train_.steps(), train_.warmup_steps(),
                                             train_.final_learning_rate_fraction());
  host_constants_[0] = {
      .adamw = AdamWStep<float>(train_.learning_rate() * schedule, train_.beta1(), train_.beta2(),
                                train_.epsilon(), update),
      .muon = {.momentum = static_cast<float>(train_.muon_momentum()),
               .learning_rate = static_cast<float>(train_.muon_learning_rate() * schedule),
               .weight_decay = static_cast<float>(train_.weight_decay())}};
  RETURN_IF_ERROR(CheckCuda(cudaMemcpyAsync(constants_, host_constants_.data(), sizeof(Constants),
                                            cudaMemcpyHostToDevice, stream),
                            "copying the optimizer's constants"));
  AdamWUpdate({.count = std::ssize(adamw_slices_),
               .slices = device_adamw_slices_,
               .step = &constants_->adamw,
               .norm = norm_,
               .gradient = arrays_.gradients,
               .master = arrays_.master,
               .m = m_,
               .v = v_,
               .weight = arrays_.weights},
              stream);
  if (!groups_.empty()) RETURN_IF_ERROR(UpdateMuon(stream));
  return CheckLaunches("the optimizer's update");
}

absl::Status DeviceOptimizer::UpdateMuon(cudaStream_t stream) {
  const MuonArguments arguments = {.count = std::ssize(muon_slices_),
                                   .slices = device_muon_slices_,
                                   .constants = &constants_->muon,
                                   .norm = norm_};
  MuonMomentum(arguments, arrays_.gradients, m_, updates_, stream);
  RETURN_IF_ERROR(Send(momenta_, stream));
  RETURN_IF_ERROR(Orthogonalize(stream));
  RETURN_IF_ERROR(Send(orthogonalized_, stream));
  MuonUpdate(arguments, updates_, arrays_.master, arrays_.weights, stream);
  return absl::OkStatus();
}

absl::Status DeviceOptimizer::Orthogonalize(cudaStream_t stream) {
  for (const Group& group : groups_) {
    const auto [first, last] = Share(group, rank_);
    if (first == last) continue;
    const MatrixBatch batch = {group.batch.rows, group.batch.cols, last - first};
    RETURN_IF_ERROR(newton_schulz_->Orthogonalize(
        batch, updates_ + group.first + first * batch.rows * batch.cols, stream));
  }
  return absl::OkStatus();
}

absl::Status DeviceOptimizer::Rehearse(cudaStream_t stream) {
  FillRandom(updates_size_, /*seed=*/2, /*scale=*/1.0F, updates_, stream);
  RETURN_IF_ERROR(Orthogonalize(stream));
  return CheckLaunches("Muon's products");
}

absl::Status DeviceOptimizer::Send(const std::vector<Segment>& segments, cudaStream_t stream) {
  if (group_ == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(group_->BeginBatch());
  for (const Segment& segment : segments) {
    RETURN_IF_ERROR(group_->Broadcast(updates_ + segment.begin, segment.size, GroupType::kBf16,
                                      segment.rank, stream));
  }
  return group_->EndBatch();
}

}  // namespace causeway::worker::cuda
