#include "worker/site/device_values.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace causeway::worker {
namespace {

// What of the fragment neither a tensor nor padding has.
std::vector<ArenaRange> GapsOf(const FragmentRange& fragment,
                               const std::vector<causeway_range>& ranges,
                               std::vector<ArenaRange> taken) {
  for (const causeway_range& range : ranges) {
    taken.push_back({range.arena_offset, range.arena_offset + range.count});
  }
  std::ranges::sort(taken, {}, &ArenaRange::begin);
  taken.push_back({fragment.end, fragment.end});
  std::vector<ArenaRange> gaps;
  int64_t place = fragment.begin;
  for (const ArenaRange& range : taken) {
    if (range.begin > place) gaps.push_back({place, range.begin});
    place = range.end;
  }
  return gaps;
}

// So many of each kind of difference stand in a message.
constexpr size_t kNamesShown = 3;

std::string Few(const std::vector<std::string>& names) {
  const auto shown = names.begin() + static_cast<ptrdiff_t>(std::min(names.size(), kNamesShown));
  const std::string text = absl::StrJoin(names.begin(), shown, ", ");
  if (names.size() <= kNamesShown) return text;
  return absl::StrCat(text, " and ", names.size() - kNamesShown, " more");
}

std::string ShapeText(std::span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

bool IsOfVocabulary(const TensorInfo& info) {
  return info.role == TensorRole::kEmbedding || info.role == TensorRole::kHead;
}

// How many values, from the first on, the trainer's tensor has of the run's; -1: it does not fit.
int64_t ValuesOf(const v1::RunConfig& config, const TensorInfo& info,
                 const std::vector<int64_t>& shape) {
  const std::vector<int64_t>& wanted = info.shape;
  if (shape == wanted) return info.size();
  if (!IsOfVocabulary(info) || shape.size() != wanted.size()) return -1;
  if (!std::equal(shape.begin() + 1, shape.end(), wanted.begin() + 1)) return -1;
  if (shape[0] > wanted[0] || shape[0] < config.model().vocabulary_size()) return -1;
  return shape[0] * info.cols;
}

std::string Wanted(const v1::RunConfig& config, const TensorInfo& info) {
  const std::string shape = causeway::ShapeText(info);
  if (!IsOfVocabulary(info) || config.model().vocabulary_size() == info.rows) return shape;
  return absl::StrCat(shape, " or at least ", config.model().vocabulary_size(), " of these rows");
}

// Cuts [begin, end) of the arena at the borders of fragments.
template <typename Piece>
void ForEachPiece(const FragmentPlan& plan, int64_t begin, int64_t end, const Piece& piece) {
  for (int i = 0; i < plan.fragments(); ++i) {
    const int64_t from = std::max(begin, plan.range(i).begin);
    const int64_t to = std::min(end, plan.range(i).end);
    if (from < to) piece(static_cast<size_t>(i), from, to);
  }
}

}  // namespace

absl::StatusOr<TensorMatch> MatchTensors(const v1::RunConfig& config, const FragmentPlan& plan,
                                         std::span<const GivenTensor> tensors) {
  std::map<std::string, size_t> given;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!given.emplace(tensors[i].name, i).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the tensor ", tensors[i].name,
          " was given twice: give each one once (a tied weight under one of its names)"));
    }
  }
  TensorMatch match;
  match.ranges.resize(static_cast<size_t>(plan.fragments()));
  match.padding.resize(static_cast<size_t>(plan.fragments()));
  std::vector<std::string> missing;
  std::vector<std::string> other_shapes;
  for (const PlacedTensor& placed : plan.tensors()) {
    const auto found = given.find(placed.info.name);
    if (found == given.end()) {
      missing.push_back(absl::StrCat(placed.info.name, " ", Wanted(config, placed.info)));
      continue;
    }
    const auto index = static_cast<int64_t>(found->second);
    const GivenTensor& tensor = tensors[found->second];
    given.erase(found);
    const int64_t values = ValuesOf(config, placed.info, tensor.shape);
    if (values < 0) {
      other_shapes.push_back(absl::StrCat(tensor.name, " has ", ShapeText(tensor.shape),
                                          ", the run's has ", Wanted(config, placed.info)));
      continue;
    }
    const int64_t end = placed.offset + values;
    ForEachPiece(plan, placed.offset, end, [&](size_t fragment, int64_t from, int64_t to) {
      match.ranges[fragment].push_back({.tensor = index,
                                        .tensor_offset = from - placed.offset,
                                        .arena_offset = from,
                                        .count = to - from});
    });
    ForEachPiece(plan, end, placed.offset + placed.info.size(),
                 [&](size_t fragment, int64_t from, int64_t to) {
                   match.padding[fragment].push_back({from, to});
                 });
  }
  for (int i = 0; i < plan.fragments(); ++i) {
    const auto fragment = static_cast<size_t>(i);
    match.gaps.push_back(GapsOf(plan.range(i), match.ranges[fragment], match.padding[fragment]));
    for (const ArenaRange& gap : match.gaps.back()) match.gap_values += gap.end - gap.begin;
  }
  std::vector<std::string> differences;
  if (!missing.empty()) {
    differences.push_back(absl::StrCat("the run has tensors that were not given: ", Few(missing)));
  }
  if (!given.empty()) {
    std::vector<std::string> unknown;
    for (const auto& [name, index] : given) {
      unknown.push_back(absl::StrCat(name, " ", ShapeText(tensors[index].shape)));
    }
    differences.push_back(
        absl::StrCat("tensors were given that the run does not have: ", Few(unknown)));
  }
  if (!other_shapes.empty()) {
    differences.push_back(absl::StrCat("shapes differ: ", Few(other_shapes)));
  }
  if (differences.empty()) return match;
  return absl::FailedPreconditionError(absl::StrCat(
      "this is not the run's model (", plan.tensors().size(), " tensors, ", plan.parameters(),
      " parameters; ", tensors.size(), " tensors were given): ", absl::StrJoin(differences, "; "),
      ". Build the same model at every site, and give only what is trained"));
}

std::vector<FragmentRange> Untrained(const TensorMatch& match) {
  std::vector<FragmentRange> untrained;
  for (const std::vector<ArenaRange>& of_fragment : match.padding) {
    for (const ArenaRange& range : of_fragment) untrained.push_back({range.begin, range.end});
  }
  return untrained;
}

absl::StatusOr<ShardPlan> PlanShares(const FragmentPlan& plan, const TensorMatch& match,
                                     std::span<const GivenTensor> tensors,
                                     std::vector<TensorShare> shares, int ranks) {
  std::ranges::sort(shares, {},
                    [](const TensorShare& share) { return std::pair(share.tensor, share.begin); });
  const auto wrong = [&](size_t tensor, absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("shares, or values on several devices, must have every value of ",
                     tensors[tensor].name, " once, each with a rank 0 .. ", ranks - 1, ": ", what));
  };
  for (const TensorShare& share : shares) {
    if (share.tensor >= 0 && share.tensor < std::ssize(tensors)) continue;
    return absl::InvalidArgumentError(absl::StrCat("there is no tensor ", share.tensor,
                                                   " to share: ", tensors.size(), " are joined"));
  }
  std::vector<size_t> first(tensors.size());  // Of each tensor's shares.
  size_t at = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    int64_t size = 1;
    for (const int64_t extent : tensors[i].shape) size *= extent;
    first[i] = at;
    int64_t place = 0;
    for (; at < shares.size() && shares[at].tensor == static_cast<int64_t>(i); ++at) {
      const TensorShare& share = shares[at];
      if (share.begin != place || share.end < share.begin || share.end > size) {
        return wrong(i, absl::StrCat(share.begin, " .. ", share.end, " follows ", place));
      }
      if (share.rank < 0 || share.rank >= ranks) return wrong(i, absl::StrCat(share.rank, " came"));
      place = share.end;
    }
    if (place != size) return wrong(i, absl::StrCat(place, " of ", size, " came"));
  }
  std::vector<OwnedRange> owned;
  for (const std::vector<causeway_range>& ranges : match.ranges) {
    for (const causeway_range& range : ranges) {
      const int64_t end = range.tensor_offset + range.count;
      for (size_t i = first[static_cast<size_t>(range.tensor)];
           i < shares.size() && shares[i].tensor == range.tensor && shares[i].begin < end; ++i) {
        const int64_t from = std::max(shares[i].begin, range.tensor_offset);
        const int64_t to = std::min(shares[i].end, end);
        if (from >= to) continue;
        const int64_t move = range.arena_offset - range.tensor_offset;
        owned.push_back({from + move, to + move, shares[i].rank});
      }
    }
  }
  std::ranges::sort(owned, {}, &OwnedRange::begin);
  return ShardPlan(plan, ranks, owned);
}

std::vector<std::vector<causeway_piece>> PiecesOf(const ShardPlan& shards) {
  std::vector<std::vector<causeway_piece>> pieces(static_cast<size_t>(shards.ranks()));
  for (int rank = 0; rank < shards.ranks(); ++rank) {
    for (const ShardPiece& piece : shards.pieces(rank)) {
      pieces[static_cast<size_t>(rank)].push_back({piece.begin, piece.end, piece.fragment});
    }
  }
  return pieces;
}

}  // namespace causeway::worker
