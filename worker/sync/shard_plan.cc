#include "worker/sync/shard_plan.h"

#include <algorithm>

#include "common/codec/codec.h"

namespace causeway::worker {
namespace {

constexpr auto kChunk = static_cast<int64_t>(kCodecChunk);

std::span<const ArenaGap> GapsOf(const FragmentPlan& plan, int fragment) {
  const std::span<const ArenaGap> all = plan.gaps();
  return {std::ranges::lower_bound(all, plan.range(fragment).begin, {}, &ArenaGap::begin),
          std::ranges::lower_bound(all, plan.range(fragment).end, {}, &ArenaGap::begin)};
}

// Some chunks of a fragment, whose gradients are complete after the same stage.
struct Run {
  int stage;
  int64_t begin;  // In chunks of the fragment.
  int64_t end;
  int64_t chunks() const { return end - begin; }
};

// The fragment's chunks by stage. One that lies in several tensors is complete with the last.
std::vector<Run> RunsOf(const FragmentPlan& plan, const FragmentRange& range, int layers) {
  std::vector<int> stages(static_cast<size_t>((range.size() + kChunk - 1) / kChunk), 0);
  for (const PlacedTensor& tensor : plan.tensors()) {
    const int64_t begin = std::max(tensor.offset, range.begin);
    const int64_t end = std::min(tensor.offset + tensor.info.size(), range.end);
    if (begin >= end) continue;
    const int stage = ReadyStage(tensor.info, layers);
    const int64_t last = (end - 1 - range.begin) / kChunk;
    for (int64_t chunk = (begin - range.begin) / kChunk; chunk <= last; ++chunk) {
      int& of_chunk = stages[static_cast<size_t>(chunk)];
      of_chunk = std::max(of_chunk, stage);
    }
  }
  std::vector<Run> runs;
  for (int64_t chunk = 0; chunk < std::ssize(stages); ++chunk) {
    const int stage = stages[static_cast<size_t>(chunk)];
    if (runs.empty() || runs.back().stage != stage) runs.push_back({stage, chunk, chunk});
    runs.back().end = chunk + 1;
  }
  return runs;
}

// Joins neighbours until all have `least` chunks, or there is one.
std::vector<Run> Join(const std::vector<Run>& runs, int64_t least) {
  std::vector<Run> joined;
  for (const Run& run : runs) {
    if (!joined.empty() && joined.back().chunks() < least) {
      joined.back().end = run.end;
      joined.back().stage = std::max(joined.back().stage, run.stage);
    } else {
      joined.push_back(run);
    }
  }
  if (joined.size() > 1 && joined.back().chunks() < least) {
    const Run last = joined.back();
    joined.pop_back();
    joined.back().end = last.end;
    joined.back().stage = std::max(joined.back().stage, last.stage);
  }
  return joined;
}

// Moves the borders so that all but the last have a multiple of `ranks` chunks, where the
// neighbour that loses chunks has enough of them. They go to the one that is ready later: the other
// would have to wait for them.
void EvenOut(std::vector<Run>& runs, int64_t ranks) {
  for (size_t i = 0; i + 1 < runs.size(); ++i) {
    Run& run = runs[i];
    Run& next = runs[i + 1];
    const int64_t over = run.chunks() % ranks;
    if (over == 0) continue;
    const bool grows = run.stage >= next.stage;
    const int64_t moved = grows ? ranks - over : -over;
    if (grows ? next.chunks() <= moved : run.chunks() <= over) continue;
    run.end += moved;
    next.begin += moved;
  }
}

}  // namespace

int ReadyStage(const TensorInfo& tensor, int layers) {
  if (tensor.block >= 0) return layers - tensor.block;
  const bool is_input =
      tensor.role == TensorRole::kEmbedding || tensor.role == TensorRole::kPositions;
  return is_input ? layers + 1 : 0;
}

ShardPlan::ShardPlan(const FragmentPlan& plan, int ranks, int64_t least_bucket)
    : pieces_(static_cast<size_t>(ranks)) {
  int layers = 0;
  for (const PlacedTensor& tensor : plan.tensors()) {
    layers = std::max(layers, tensor.info.block + 1);
  }
  stages_ = layers + 2;
  for (int fragment = 0; fragment < plan.fragments(); ++fragment) {
    const FragmentRange& range = plan.range(fragment);
    std::vector<Run> runs = Join(RunsOf(plan, range, layers), (least_bucket + kChunk - 1) / kChunk);
    EvenOut(runs, ranks);
    for (const Run& run : runs) {
      ShardBucket bucket{.fragment = fragment, .stage = run.stage, .bounds = {}};
      for (int64_t rank = 0; rank <= ranks; ++rank) {
        const int64_t chunk = run.begin + run.chunks() * rank / ranks;
        bucket.bounds.push_back(std::min(range.begin + chunk * kChunk, range.end));
      }
      buckets_.push_back(std::move(bucket));
    }
  }
  std::ranges::stable_sort(buckets_, {}, &ShardBucket::stage);
  for (size_t rank = 0; rank < pieces_.size(); ++rank) {
    std::vector<ShardPiece>& pieces = pieces_[rank];
    for (size_t i = 0; i < buckets_.size(); ++i) {
      const ShardBucket& bucket = buckets_[i];
      if (bucket.bounds[rank] == bucket.bounds[rank + 1]) continue;
      pieces.push_back({.begin = bucket.bounds[rank],
                        .end = bucket.bounds[rank + 1],
                        .fragment = bucket.fragment,
                        .bucket = static_cast<int>(i)});
    }
  }
  PlacePieces();
}

ShardPlan::ShardPlan(const FragmentPlan& plan, int ranks, std::span<const OwnedRange> owned)
    : pieces_(static_cast<size_t>(ranks)) {
  auto range = owned.begin();
  for (int fragment = 0; fragment < plan.fragments(); ++fragment) {
    const FragmentRange& whole = plan.range(fragment);
    while (range != owned.end() && range->end <= whole.begin) ++range;
    int64_t begin = whole.begin;
    int rank = range == owned.end() ? 0 : range->rank;
    const auto cut = [&](int64_t end) {
      if (begin < end) {
        pieces_[static_cast<size_t>(rank)].push_back(
            {.begin = begin, .end = end, .fragment = fragment});
      }
      begin = std::max(begin, end);
    };
    for (auto next = range; next != owned.end() && next->begin < whole.end; ++next) {
      if (next->rank == rank) continue;
      const int64_t chunks = (next->begin - whole.begin + kChunk - 1) / kChunk;
      cut(std::min(whole.begin + chunks * kChunk, whole.end));
      rank = next->rank;
    }
    cut(whole.end);
  }
  PlacePieces();
}

void ShardPlan::PlacePieces() {
  for (std::vector<ShardPiece>& pieces : pieces_) {
    std::ranges::sort(pieces, {}, &ShardPiece::begin);
    int64_t offset = 0;
    for (ShardPiece& piece : pieces) {
      piece.offset = offset;
      offset += piece.size();
    }
  }
}

ShardPlan ShardPlan::Whole(const FragmentPlan& plan) {
  const OwnedRange all = {.end = plan.arena_size()};
  return ShardPlan(plan, /*ranks=*/1, std::span(&all, 1));
}

std::span<const ShardPiece> ShardPlan::pieces(int rank, int fragment) const {
  const std::span<const ShardPiece> all = pieces(rank);
  return {std::ranges::lower_bound(all, fragment, {}, &ShardPiece::fragment),
          std::ranges::upper_bound(all, fragment, {}, &ShardPiece::fragment)};
}

int64_t ShardPlan::shard_size(int rank) const {
  const std::span<const ShardPiece> all = pieces(rank);
  return all.empty() ? 0 : all.back().offset + all.back().size();
}

int64_t ShardPlan::shard_size(int rank, int fragment) const {
  const std::span<const ShardPiece> of_fragment = pieces(rank, fragment);
  if (of_fragment.empty()) return 0;
  return of_fragment.back().offset + of_fragment.back().size() - of_fragment.front().offset;
}

std::vector<GapPiece> GapPieces(const FragmentPlan& plan, const ShardPlan& shards, int rank,
                                int fragment) {
  std::vector<GapPiece> found;
  int64_t place = 0;
  auto piece = shards.pieces(rank, fragment).begin();
  const auto end = shards.pieces(rank, fragment).end();
  for (const ArenaGap& gap : GapsOf(plan, fragment)) {
    const int64_t size = gap.end - gap.begin;
    while (piece != end && piece->end <= gap.begin) ++piece;
    // Pieces begin and end between chunks: no gap is in two.
    if (piece != end && piece->begin <= gap.begin) found.push_back({gap.begin, size, place});
    place += size;
  }
  return found;
}

int64_t GapSize(const FragmentPlan& plan, int fragment) {
  int64_t size = 0;
  for (const ArenaGap& gap : GapsOf(plan, fragment)) size += gap.end - gap.begin;
  return size;
}

}  // namespace causeway::worker
