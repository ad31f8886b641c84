#include "worker/backend/cuda/staged_gradients.h"

namespace causeway::worker::cuda {
absl::StatusOr<std::unique_ptr<StagedGradients>> StagedGradients::Create(const Options& options,
                                                                         DeviceMemory* memory,
                                                                         cudaStream_t stream,
                                                                         cudaStream_t exchange) {
  auto staged = std::unique_ptr<StagedGradients>(new StagedGradients(options, exchange));
  staged->Lay();
  RETURN_IF_ERROR(staged->Allocate(*memory, stream));
  return staged;
}

void StagedGradients::Lay() {
  const int last = options_.shards->stages() - 1;
  stages_.resize(static_cast<size_t>(last) + 1);
  // Runs in arena order, each up to the next tensor of another stage.
  const std::vector<PlacedTensor>& tensors = options_.plan->tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t begin = tensors[i].offset;
    const int64_t end =
        i + 1 < tensors.size() ? tensors[i + 1].offset : options_.plan->arena_size();
    Stage& stage = stages_[static_cast<size_t>(ReadyStage(tensors[i].info, last - 1))];
    if (stage.runs.empty() || stage.runs.back().end != begin) stage.runs.push_back({begin, begin});
    stage.runs.back().end = end;
  }
  for (int i = 0; i <= last; ++i) {
    Stage& stage = stages_[static_cast<size_t>(i)];
    stage.buffer = i == 0 || i == last ? kEnds : static_cast<size_t>(i % 2);
    Buffer& buffer = buffers_[stage.buffer];
    int64_t place = i == last && options_.tied_head ? buffer.values : 0;
    for (Run& run : stage.runs) {
      run.place = place;
      place += run.end - run.begin;
    }
    buffer.values = std::max(buffer.values, place);
    LayParts(stage);
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t begin = tensors[i].offset + tensors[i].info.size();
    const int64_t end =
        i + 1 < tensors.size() ? tensors[i + 1].offset : options_.plan->arena_size();
    if (begin == end) continue;
    Stage& stage = stages_[static_cast<size_t>(ReadyStage(tensors[i].info, last - 1))];
    const auto run = std::ranges::find_if(
        stage.runs, [&](const Run& r) { return r.begin <= begin && end <= r.end; });
    stage.gaps.push_back({run->place + begin - run->begin, end - begin});
  }
}

void StagedGradients::LayParts(Stage& stage) const {
  const auto rank = static_cast<size_t>(options_.rank);
  for (const Run& run : stage.runs) {
    for (size_t i = 0; i < options_.shards->buckets().size(); ++i) {
      const ShardBucket& bucket = options_.shards->buckets()[i];
      const int64_t begin = std::max(bucket.begin(), run.begin);
      if (begin >= std::min(bucket.end(), run.end)) continue;
      Part part{.place = run.place + begin - run.begin, .bounds = {}, .own = 0};
      for (const int64_t bound : bucket.bounds) {
        part.bounds.push_back(std::clamp(bound, begin, run.end) - begin);
      }
      const std::span<const ShardPiece> pieces =
          options_.shards->pieces(options_.rank, bucket.fragment);
      const auto piece = std::ranges::find(pieces, static_cast<int>(i), &ShardPiece::bucket);
      if (piece != pieces.end()) {
        part.own = piece->offset + begin + part.bounds[rank] - piece->begin;
      }
      stage.parts.push_back(std::move(part));
    }
  }
}

absl::Status StagedGradients::Allocate(DeviceMemory& memory, cudaStream_t stream) {
  const int64_t own = options_.shards->shard_size(options_.rank);
  ASSIGN_OR_RETURN(own_,
                   memory.Allocate<float>("gradients", own, "more GPUs (each keeps its share)"));
  for (Buffer& buffer : buffers_) {
    if (buffer.values == 0) continue;
    ASSIGN_OR_RETURN(buffer.data,
                     memory.Allocate<float>("gradients of some layers", buffer.values, ""));
    ASSIGN_OR_RETURN(buffer.summed, Event::Create());
  }
  ASSIGN_OR_RETURN(written_, Event::Create());
  for (Stage& stage : stages_) {
    if (stage.gaps.empty()) continue;
    ASSIGN_OR_RETURN(stage.device_gaps, memory.Upload("tables of slices", stage.gaps, "", stream));
  }
  return absl::OkStatus();
}

GradientPlaces StagedGradients::places() const {
  std::vector<GradientPlaces::Place> places;
  for (const Stage& stage : stages_) {
    for (const Run& run : stage.runs) {
      places.push_back({run.begin, buffers_[stage.buffer].data + run.place});
    }
  }
  std::ranges::sort(places, {}, &GradientPlaces::Place::begin);
  return GradientPlaces(std::move(places));
}

absl::Status StagedGradients::Begin(int stage, cudaStream_t stream) {
  const Stage& at = stages_[static_cast<size_t>(stage)];
  const Buffer& buffer = buffers_[at.buffer];
  RETURN_IF_ERROR(buffer.summed.HoldUp(stream));
  if (!at.gaps.empty()) {
    ClearRanges(std::ssize(at.gaps), at.device_gaps, buffer.data, stream);
  }
  return absl::OkStatus();
}

absl::Status StagedGradients::Sum(int stage, bool accumulate, cudaStream_t stream) {
  const Stage& at = stages_[static_cast<size_t>(stage)];
  const Buffer& buffer = buffers_[at.buffer];
  RETURN_IF_ERROR(written_.Record(stream));
  RETURN_IF_ERROR(written_.HoldUp(exchange_));
  RETURN_IF_ERROR(options_.group->BeginBatch());
  for (const Part& part : at.parts) {
    RETURN_IF_ERROR(options_.group->ReduceScatterSum(buffer.data + part.place, part.bounds,
                                                     GroupType::kFloat, exchange_));
  }
  RETURN_IF_ERROR(options_.group->EndBatch());
  const auto rank = static_cast<size_t>(options_.rank);
  for (const Part& part : at.parts) {
    const int64_t size = part.bounds[rank + 1] - part.bounds[rank];
    if (size == 0) continue;
    const float* const sums = buffer.data + part.place + part.bounds[rank];
    if (accumulate) {
      Add(size, sums, own_ + part.own, exchange_);
    } else {
      RETURN_IF_ERROR(
          CopyAsync(own_ + part.own, sums, size, exchange_, "keeping the own gradients"));
    }
  }
  return buffer.summed.Record(exchange_);
}

}  // namespace causeway::worker::cuda
