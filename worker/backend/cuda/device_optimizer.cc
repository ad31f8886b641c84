#include "worker/backend/cuda/device_optimizer.h"

#include <cassert>
#include <numeric>

#include "worker/backend/cpu/optimizer.h"

namespace causeway::worker::cuda {
namespace {

constexpr float kA = 3.4445F;
constexpr float kB = -4.7750F;
constexpr float kC = 2.0315F;
// Values of matrices that are worked on at once: more gains nothing, and costs memory.
constexpr int64_t kChunkValues = int64_t{1} << 26;

int64_t Side(const MatrixBatch& batch) { return std::min(batch.rows, batch.cols); }

int64_t ChunkOf(const MatrixBatch& batch) {
  return std::clamp<int64_t>(kChunkValues / (batch.rows * batch.cols), 1,
                             std::max<int64_t>(batch.count, 1));
}

}  // namespace

absl::StatusOr<NewtonSchulz> NewtonSchulz::Create(const std::vector<MatrixBatch>& batches,
                                                  DeviceMemory* memory, Gemm* gemm) {
  int64_t values = 0;
  int64_t squares = 0;
  int64_t scratch = 1;
  for (const MatrixBatch& batch : batches) {
    const int64_t chunk = ChunkOf(batch);
    values = std::max(values, chunk * batch.rows * batch.cols);
    squares = std::max(squares, chunk * Side(batch) * Side(batch));
    scratch = std::max(scratch, MuonNormalizeScratch(chunk, batch.rows * batch.cols));
  }
  NewtonSchulz result(gemm);
  constexpr char kArena[] = "Muon's products";
  constexpr char kLower[] = "train.optimizer: ADAMW";
  ASSIGN_OR_RETURN(result.next_, memory->Allocate<__nv_bfloat16>(kArena, values, kLower));
  ASSIGN_OR_RETURN(result.gram_, memory->Allocate<__nv_bfloat16>(kArena, squares, kLower));
  ASSIGN_OR_RETURN(result.polynomial_, memory->Allocate<__nv_bfloat16>(kArena, squares, kLower));
  ASSIGN_OR_RETURN(result.scratch_, memory->Allocate<double>(kArena, scratch, kLower));
  return result;
}

absl::Status NewtonSchulz::Orthogonalize(const MatrixBatch& batch, __nv_bfloat16* matrices,
                                         cudaStream_t stream) const {
  const int64_t size = batch.rows * batch.cols;
  const int64_t chunk = ChunkOf(batch);
  for (int64_t done = 0; done < batch.count; done += chunk) {
    const MatrixBatch now = {batch.rows, batch.cols, std::min(chunk, batch.count - done)};
    __nv_bfloat16* const x = matrices + done * size;
    MuonNormalize(now.count, size, x, scratch_, stream);
    __nv_bfloat16* from = x;
    __nv_bfloat16* to = next_;
    for (int iteration = 0; iteration < kNewtonSchulzIterations; ++iteration) {
      RETURN_IF_ERROR(Iterate(now, from, to, stream));
      std::swap(from, to);
    }
    if (from == x) continue;
    RETURN_IF_ERROR(CheckCuda(
        cudaMemcpyAsync(x, from, static_cast<size_t>(now.count * size) * sizeof(__nv_bfloat16),
                        cudaMemcpyDeviceToDevice, stream),
        "copying orthogonalized matrices"));
  }
  return absl::OkStatus();
}

absl::Status NewtonSchulz::Iterate(const MatrixBatch& batch, const __nv_bfloat16* from,
                                   __nv_bfloat16* to, cudaStream_t stream) const {
  const bool tall = batch.rows > batch.cols;
  const int64_t side = Side(batch);
  const int64_t size = batch.rows * batch.cols;
  const GemmOperand x = {.data = from, .stride = batch.cols, .batch_stride = size};
  GemmOperand turned = x;
  turned.transpose = true;
  const GemmOperand gram = {.data = gram_, .stride = side, .batch_stride = side * side};
  const GemmOperand polynomial = {.data = polynomial_, .stride = side, .batch_stride = side * side};
  RETURN_IF_ERROR(gemm_->Run({.m = side,
                              .n = side,
                              .k = size / side,
                              .batch = batch.count,
                              .a = tall ? turned : x,
                              .b = tall ? x : turned,
                              .d = gram_,
                              .d_stride = side,
                              .d_batch_stride = side * side},
                             stream));
  RETURN_IF_ERROR(gemm_->Run({.m = side,
                              .n = side,
                              .k = side,
                              .batch = batch.count,
                              .alpha = kC,
                              .beta = kB,
                              .a = gram,
                              .b = gram,
                              .d = polynomial_,
                              .d_stride = side,
                              .d_batch_stride = side * side,
                              .c = gram_},
                             stream));
  // X = a X + P X, or a X + X P of tall ones.
  return gemm_->Run({.m = batch.rows,
                     .n = batch.cols,
                     .k = side,
                     .batch = batch.count,
                     .beta = kA,
                     .a = tall ? x : polynomial,
                     .b = tall ? polynomial : x,
                     .d = to,
                     .d_stride = batch.cols,
                     .d_batch_stride = size,
                     .c = from},
                    stream);
}

namespace {

constexpr char kStateArena[] = "master weights and moments";
constexpr char kStateLower[] = "more GPUs (each keeps its share)";

// The most of matrices in a wave, 1 GiB of updates, unless one has more.
constexpr int64_t kWaveValues = int64_t{1} << 29;

// Values that kernels take at a time: what lies behind a tensor up to there are zeros, and stay so.
constexpr int64_t kWhole = 8;

// Bytes of a value.
constexpr int64_t kFloatValue = 4;
constexpr int64_t kBf16Value = 2;

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

void AppendStateRange(const StateRange& range, std::vector<StateRange>* ranges) {
  if (!ranges->empty()) {
    StateRange& last = ranges->back();
    if (last.begin + last.size == range.begin && last.offset + last.size == range.offset) {
      last.size += range.size;
      return;
    }
  }
  ranges->push_back(range);
}

absl::StatusOr<std::unique_ptr<DeviceOptimizer>> DeviceOptimizer::Create(
    const FragmentPlan& plan, const v1::TrainConfig& train, const ShardPlan& shards, int rank,
    LocalGroup* group, const DeviceArrays& arrays, int64_t muon_rank_values, DeviceMemory* memory,
    Gemm* gemm, StepProbe* probe, cudaStream_t stream, cudaStream_t exchange) {
  auto optimizer = std::unique_ptr<DeviceOptimizer>(
      new DeviceOptimizer(train, shards, rank, group, arrays, probe, exchange));
  optimizer->Lay(plan, muon_rank_values);
  RETURN_IF_ERROR(optimizer->Allocate(*memory, gemm, stream));
  return optimizer;
}

void DeviceOptimizer::Lay(const FragmentPlan& plan, int64_t muon_rank_values) {
  for (const ShardPiece& piece : shards_.pieces(rank_)) {
    AppendStateRange({piece.begin, piece.offset, piece.size()}, &norm_ranges_);
  }
  std::vector<Group> groups;
  for (const PlacedTensor& tensor : plan.tensors()) {
    if (train_.optimizer() != v1::TrainConfig::MUON || tensor.info.role != TensorRole::kMatrix) {
      LayAdamW(tensor);
      continue;
    }
    auto group = std::ranges::find_if(groups, [&](const Group& known) {
      return known.rows == tensor.info.rows && known.cols == tensor.info.cols;
    });
    if (group == groups.end()) {
      groups.push_back({tensor.info.rows, tensor.info.cols, {}});
      group = groups.end() - 1;
    }
    group->offsets.push_back(tensor.offset);
  }
  for (const Group& group : groups) {
    const int64_t size = group.rows * group.cols;
    const int64_t of_a_rank = std::max<int64_t>(1, muon_rank_values / size);
    const int64_t most = std::max<int64_t>(1, kWaveValues / size);
    const auto count = static_cast<size_t>(std::min(of_a_rank * shards_.ranks(), most));
    const std::span<const int64_t> offsets = group.offsets;
    for (size_t done = 0; done < offsets.size(); done += count) {
      LayWave(group, offsets.subspan(done, std::min(count, offsets.size() - done)));
    }
  }
}

void DeviceOptimizer::LayAdamW(const PlacedTensor& tensor) {
  const float decay = tensor.info.decays() ? static_cast<float>(train_.weight_decay()) : 0.0F;
  for (const ShardPiece& piece : shards_.pieces(rank_)) {
    const int64_t begin = std::max(piece.begin, tensor.offset);
    const int64_t end = std::min(piece.end, tensor.offset + RoundUp(tensor.info.size()));
    if (begin >= end) continue;
    const int64_t second =
        second_ranges_.empty() ? 0 : second_ranges_.back().offset + second_ranges_.back().size;
    AppendStateRange({begin, second, end - begin}, &second_ranges_);
    const int64_t state = piece.offset + begin - piece.begin;
    AppendSlices({.state = state,
                  .second = second,
                  .gradient = GradientOf(begin, state),
                  .weight = begin,
                  .weight_decay = decay},
                 end - begin, &adamw_slices_);
  }
}

void DeviceOptimizer::LayWave(const Group& group, std::span<const int64_t> offsets) {
  Wave wave;
  wave.name = absl::StrCat("Muon, ", group.rows, " x ", group.cols);
  wave.batch = {group.rows, group.cols, std::ssize(offsets)};
  wave.first_slice = std::ssize(muon_slices_);
  const int64_t size = group.rows * group.cols;
  const double shape =
      std::sqrt(std::max(1.0, static_cast<double>(group.rows) / static_cast<double>(group.cols)));
  for (size_t matrix = 0; matrix < offsets.size(); ++matrix) {
    const int64_t offset = offsets[matrix];
    for (int rank = 0; rank < shards_.ranks(); ++rank) {
      for (const ShardPiece& piece : shards_.pieces(rank)) {
        const int64_t begin = std::max(piece.begin, offset);
        const int64_t end = std::min(piece.end, offset + size);
        if (begin >= end) continue;
        const int64_t update = static_cast<int64_t>(matrix) * size + begin - offset;
        wave.momenta.push_back({update, end - begin, rank});
        if (rank != rank_) continue;
        const int64_t state = piece.offset + begin - piece.begin;
        assert((end - begin) % kVectorValues == 0);  // Muon takes so many at a time.
        AppendSlices({.state = state,
                      .gradient = GradientOf(begin, state),
                      .weight = begin,
                      .update = update,
                      .shape = shape},
                     end - begin, &muon_slices_);
      }
    }
  }
  wave.last_slice = std::ssize(muon_slices_);
  for (int rank = 0; rank < shards_.ranks(); ++rank) {
    const auto [first, last] = Share(wave, rank);
    if (first < last) wave.orthogonalized.push_back({first * size, (last - first) * size, rank});
  }
  waves_.push_back(std::move(wave));
}

std::pair<int64_t, int64_t> DeviceOptimizer::Share(const Wave& wave, int rank) const {
  const int64_t ranks = shards_.ranks();
  return {wave.batch.count * rank / ranks, wave.batch.count * (rank + 1) / ranks};
}

absl::Status DeviceOptimizer::Allocate(DeviceMemory& memory, Gemm* gemm, cudaStream_t stream) {
  const int64_t second =
      second_ranges_.empty() ? 0 : second_ranges_.back().offset + second_ranges_.back().size;
  for (const auto& [moments, size] : {std::pair(&m_, shards_.shard_size(rank_)), {&v_, second}}) {
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
  for (const StateRange& range : norm_ranges_) {
    scratch = std::max(scratch, SumOfSquaresScratch(range.size));
  }
  ASSIGN_OR_RETURN(sums_, memory.Allocate<double>("partial sums", shards_.ranks(), ""));
  ASSIGN_OR_RETURN(norm_scratch_, memory.Allocate<double>("partial sums", scratch, ""));
  ASSIGN_OR_RETURN(norm_, memory.Allocate<GradientNorm>("partial sums", 1, ""));
  RETURN_IF_ERROR(AllocateMuon(memory, gemm));
  return CheckCuda(cudaStreamSynchronize(stream), "preparing the optimizer");
}

absl::Status DeviceOptimizer::AllocateMuon(DeviceMemory& memory, Gemm* gemm) {
  if (waves_.empty()) return absl::OkStatus();
  int64_t values = 0;
  std::vector<MatrixBatch> batches;
  for (const Wave& wave : waves_) {
    values = std::max(values, wave.values());
    const auto [first, last] = Share(wave, rank_);
    batches.push_back({wave.batch.rows, wave.batch.cols, last - first});
  }
  // Alone, nothing is done beside a wave.
  const size_t buffers = group_ == nullptr ? 1 : std::min<size_t>(3, waves_.size());
  for (size_t i = 0; i < buffers; ++i) {
    Buffer buffer;
    ASSIGN_OR_RETURN(buffer.updates, memory.Allocate<__nv_bfloat16>("Muon's updates", values,
                                                                    "train.optimizer: ADAMW"));
    for (Event* const event :
         {&buffer.momenta_ready, &buffer.gathered, &buffer.orthogonalized, &buffer.sent}) {
      ASSIGN_OR_RETURN(*event, Event::Create());
    }
    buffers_.push_back(std::move(buffer));
  }
  ASSIGN_OR_RETURN(newton_schulz_, NewtonSchulz::Create(batches, &memory, gemm));
  return absl::OkStatus();
}

absl::Status DeviceOptimizer::ComputeNorm(cudaStream_t stream) {
  bool accumulate = false;
  for (const StateRange& range : norm_ranges_) {
    RETURN_IF_ERROR(
        Probed(probe_, MemoryKernel("gradient norm", kFloatValue * range.size), stream, [&] {
          SumOfSquares(range.size, arrays_.gradients + GradientOf(range.begin, range.offset),
                       accumulate, sums_ + rank_, norm_scratch_, stream);
        }));
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
                                                     train_.final_learning_rate_fraction(),
                                                     train_.constant_fraction());
}

absl::Status DeviceOptimizer::Update(int64_t step, int64_t update, cudaStream_t stream) {
  const double schedule =
      LearningRateFactor(step, train_.steps(), train_.warmup_steps(),
                         train_.final_learning_rate_fraction(), train_.constant_fraction());
  host_constants_[0] = {
      .adamw = AdamWStep<float>(train_.learning_rate() * schedule, train_.beta1(), train_.beta2(),
                                train_.epsilon(), update),
      .muon = {.momentum = static_cast<float>(train_.muon_momentum()),
               .learning_rate = static_cast<float>(train_.muon_learning_rate() * schedule),
               .weight_decay = static_cast<float>(train_.weight_decay())}};
  RETURN_IF_ERROR(CheckCuda(cudaMemcpyAsync(constants_, host_constants_.data(), sizeof(Constants),
                                            cudaMemcpyHostToDevice, stream),
                            "copying the optimizer's constants"));
  const int64_t adamw_values =
      second_ranges_.empty() ? 0 : second_ranges_.back().offset + second_ranges_.back().size;
  // Reads the gradient; reads and writes weight and moments; writes the bf16 weight.
  RETURN_IF_ERROR(Probed(
      probe_,
      MemoryKernel("AdamW", (7 * kFloatValue + kBf16Value) * adamw_values, /*in_place=*/true),
      stream, [&] {
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
      }));
  RETURN_IF_ERROR(UpdateMuon(stream));
  return CheckLaunches("the optimizer's update");
}

int64_t DeviceOptimizer::OwnValues(const Wave& wave) const {
  int64_t values = 0;
  for (int64_t i = wave.first_slice; i < wave.last_slice; ++i) {
    values += muon_slices_[static_cast<size_t>(i)].size;
  }
  return values;
}

MuonArguments DeviceOptimizer::ArgumentsOf(const Wave& wave) const {
  return {.count = wave.last_slice - wave.first_slice,
          .slices = device_muon_slices_ + wave.first_slice,
          .constants = &constants_->muon,
          .norm = norm_};
}

absl::Status DeviceOptimizer::UpdateMuon(cudaStream_t stream) {
  const size_t waves = waves_.size();
  if (waves == 0) return absl::OkStatus();
  if (group_ == nullptr) {
    for (size_t wave = 0; wave < waves; ++wave) {
      RETURN_IF_ERROR(GatherMomenta(wave, stream));
      RETURN_IF_ERROR(Orthogonalize(wave, stream));
      RETURN_IF_ERROR(UpdatePieces(wave, stream));
    }
    return absl::OkStatus();
  }
  // When a wave's buffer is written again, its pieces have been updated.
  RETURN_IF_ERROR(GatherMomenta(0, stream));
  for (size_t wave = 0; wave < waves; ++wave) {
    if (wave + 1 < waves) RETURN_IF_ERROR(GatherMomenta(wave + 1, stream));
    RETURN_IF_ERROR(Orthogonalize(wave, stream));
    if (wave > 0) RETURN_IF_ERROR(UpdatePieces(wave - 1, stream));
  }
  return UpdatePieces(waves - 1, stream);
}

absl::Status DeviceOptimizer::GatherMomenta(size_t wave, cudaStream_t stream) {
  const Buffer& buffer = BufferOf(wave);
  const int64_t bytes = (3 * kFloatValue + kBf16Value) * OwnValues(waves_[wave]);
  RETURN_IF_ERROR(
      Probed(probe_, MemoryKernel("Muon, momentum", bytes, /*in_place=*/true), stream, [&] {
        MuonMomentum(ArgumentsOf(waves_[wave]), arrays_.gradients, m_, buffer.updates, stream);
      }));
  return Send(waves_[wave].momenta, buffer, buffer.momenta_ready, buffer.gathered, stream);
}

absl::Status DeviceOptimizer::Orthogonalize(size_t wave, cudaStream_t stream) {
  const Buffer& buffer = BufferOf(wave);
  if (group_ != nullptr) RETURN_IF_ERROR(buffer.gathered.HoldUp(stream));
  RETURN_IF_ERROR(OrthogonalizeShare(waves_[wave], buffer.updates, stream));
  return Send(waves_[wave].orthogonalized, buffer, buffer.orthogonalized, buffer.sent, stream);
}

absl::Status DeviceOptimizer::UpdatePieces(size_t wave, cudaStream_t stream) {
  const Buffer& buffer = BufferOf(wave);
  if (group_ != nullptr) RETURN_IF_ERROR(buffer.sent.HoldUp(stream));
  const int64_t bytes = 2 * (kFloatValue + kBf16Value) * OwnValues(waves_[wave]);
  return Probed(probe_, MemoryKernel("Muon, update", bytes, /*in_place=*/true), stream, [&] {
    MuonUpdate(ArgumentsOf(waves_[wave]), buffer.updates, arrays_.master, arrays_.weights, stream);
  });
}

absl::Status DeviceOptimizer::OrthogonalizeShare(const Wave& wave, __nv_bfloat16* updates,
                                                 cudaStream_t stream) {
  const auto [first, last] = Share(wave, rank_);
  if (first == last) return absl::OkStatus();
  const MatrixBatch batch = {wave.batch.rows, wave.batch.cols, last - first};
  const int64_t side = Side(batch);
  const int64_t size = batch.rows * batch.cols;
  __nv_bfloat16* const own = updates + first * size;
  // X X^T, A A and P X, five times.
  StepKernel kernel =
      ProductKernel(wave.name, kNewtonSchulzIterations * batch.count, 2 * size + side * side, side);
  kernel.in_place = true;
  return Probed(probe_, kernel, stream,
                [&] { return newton_schulz_->Orthogonalize(batch, own, stream); });
}

absl::Status DeviceOptimizer::Rehearse(cudaStream_t stream) {
  if (waves_.empty()) return absl::OkStatus();
  for (const Wave& wave : waves_) {
    FillRandom(wave.values(), /*seed=*/2, /*scale=*/1.0F, buffers_.front().updates, stream);
    RETURN_IF_ERROR(OrthogonalizeShare(wave, buffers_.front().updates, stream));
  }
  return CheckLaunches("Muon's products");
}

absl::Status DeviceOptimizer::Send(const std::vector<Segment>& segments, const Buffer& buffer,
                                   const Event& before, const Event& after, cudaStream_t stream) {
  if (group_ == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(before.Record(stream));
  RETURN_IF_ERROR(before.HoldUp(exchange_));
  RETURN_IF_ERROR(group_->BeginBatch());
  for (const Segment& segment : segments) {
    RETURN_IF_ERROR(group_->Broadcast(buffer.updates + segment.begin, segment.size,
                                      GroupType::kBf16, segment.rank, exchange_));
  }
  RETURN_IF_ERROR(group_->EndBatch());
  return after.Record(exchange_);
}

}  // namespace causeway::worker::cuda
