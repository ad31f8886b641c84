// Whether a contribution is what its header says, nothing but codes that a merge can take, and of a
// size that training can have; and whose are kept out by an operator's order.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "server/core/fragment_rounds.h"

namespace causeway::server {
namespace {

// membership.norm_cap where it is 0.
constexpr double kDefaultNormCap = 10;
// A fragment of zeros, such as biases, may be moved, too.
constexpr double kSmallestParameter = 0.02;

}  // namespace

size_t FragmentRounds::codec_chunks() const {
  return (static_cast<size_t>(options_.range.size()) + kCodecChunk - 1) / kCodecChunk;
}

size_t FragmentRounds::CodesBegin(size_t codec_chunk) const {
  return options_.codec_up->EncodedBytes(
      std::min(codec_chunk * kCodecChunk, static_cast<size_t>(options_.range.size())));
}

std::pair<size_t, size_t> FragmentRounds::ChunksWithin(size_t leaf) const {
  const size_t stride = CodesBegin(1);
  const size_t all = CodesBegin(codec_chunks());
  const size_t end = (leaf + 1) * kTreeLeafBytes;
  return {(leaf * kTreeLeafBytes + stride - 1) / stride,
          end >= all ? codec_chunks() : end / stride};
}

bool FragmentRounds::NeedsBase() const {
  // With the others only the base's length counts for a sum of squares.
  return options_.codec_up->id() == v1::FP32 &&
         options_.config->sync().contribution() != v1::SyncConfig::GRADIENT;
}

absl::StatusOr<double> FragmentRounds::SquaresOf(size_t chunk,
                                                 std::span<const uint8_t> codes) const {
  static constexpr std::array<float, kCodecChunk> kZeros = {};
  const size_t begin = chunk * kCodecChunk;
  const size_t count = std::min(kCodecChunk, static_cast<size_t>(options_.range.size()) - begin);
  const std::span<const float> base =
      NeedsBase() ? std::span<const float>(arrays_.set().published).subspan(begin, count)
                  : std::span<const float>(kZeros).first(count);
  absl::StatusOr<double> squares = options_.codec_up->SumOfSquares(codes, base);
  if (squares.ok() || chunk == 0) return squares;
  return Annotate(squares.status(), absl::StrCat("counted from value ", chunk * kCodecChunk));
}

absl::Status FragmentRounds::CheckHeader(const v1::PushHeader& header) const {
  if (header.codec() != options_.codec_up->id()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the run's codec_up is ", v1::Codec_Name(options_.codec_up->id()),
                     ", the push says ", v1::Codec_Name(header.codec())));
  }
  if (header.total_bytes() != contribution_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("fragment ", options_.fragment, " takes ",
                                                   contribution_bytes(), " bytes, the push says ",
                                                   header.total_bytes()));
  }
  if (header.tokens() < 0 || header.tokens() > kMaxTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens must be 0 .. 2^48, the push says ", header.tokens()));
  }
  return DrawsFromProto(header.draws(), options_.config->membership().max_workers()).status();
}

std::vector<double> FragmentRounds::MeasureLeaf(int64_t round, int64_t leaf,
                                                std::span<const uint8_t> bytes) const {
  // A merge would hold up whoever receives.
  if (!data_mutex_.ReaderTryLock()) return {};
  bool open = !(NeedsBase() && arrays_.at_rest());
  if (open) {
    absl::MutexLock lock(&mutex_);
    open = round == static_cast<int64_t>(published_hashes_.size());
  }
  std::vector<double> all;
  const size_t offset = static_cast<size_t>(leaf) * kTreeLeafBytes;
  const auto [begin, end] = ChunksWithin(static_cast<size_t>(leaf));
  for (size_t chunk = begin; open && chunk < end; ++chunk) {
    const absl::StatusOr<double> squares = SquaresOf(
        chunk,
        bytes.subspan(CodesBegin(chunk) - offset, CodesBegin(chunk + 1) - CodesBegin(chunk)));
    if (!squares.ok()) {
      all.clear();
      break;
    }
    all.push_back(*squares);
  }
  data_mutex_.ReaderUnlock();
  return all;
}

absl::StatusOr<double> FragmentRounds::VerifyObject(const v1::PushHeader& header,
                                                    const ReceivedObject& object) {
  const std::span<const uint8_t> bytes = object.bytes.view();
  if (static_cast<int64_t>(bytes.size()) != header.total_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the object has ", bytes.size(), " bytes, its header says ", header.total_bytes()));
  }
  const uint64_t hash = object.tree_hash.has_value() ? *object.tree_hash : TreeHash(bytes);
  if (hash != header.object_hash()) {
    return absl::DataLossError(absl::StrCat("the object's hash is ", HashToHex(hash),
                                            ", its header says ", HashToHex(header.object_hash())));
  }
  // The round stays open while this contribution is under way, so the published values are its
  // base, and they do not go to rest.
  if (NeedsBase()) {
    absl::WriterMutexLock lock(&data_mutex_);
    RETURN_IF_ERROR(Load());
  }
  absl::ReaderMutexLock lock(&data_mutex_);
  double sum = 0;
  size_t chunk = 0;
  for (size_t leaf = 0; leaf * kTreeLeafBytes < bytes.size(); ++leaf) {
    const auto [begin, end] = ChunksWithin(leaf);
    const bool known = leaf < object.squares.size() && object.squares[leaf].size() == end - begin;
    // The first of them may lie across the border of the leaf before.
    for (; chunk < end; ++chunk) {
      if (known && chunk >= begin) {
        sum += object.squares[leaf][chunk - begin];
        continue;
      }
      const size_t at = CodesBegin(chunk);
      ASSIGN_OR_RETURN(const double squares,
                       SquaresOf(chunk, bytes.subspan(at, CodesBegin(chunk + 1) - at)));
      sum += squares;
    }
  }
  return std::sqrt(sum);
}

double FragmentRounds::PublishedNorm() const {
  const auto version = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return static_cast<int64_t>(published_hashes_.size()) - 1;
  };
  {
    absl::MutexLock lock(&mutex_);
    if (published_norm_.first == version()) return published_norm_.second;
  }
  const double norm = Norm(arrays_.set().published);
  absl::MutexLock lock(&mutex_);
  published_norm_ = {version(), norm};
  return norm;
}

AddedContribution FragmentRounds::Judge(double norm) const {
  AddedContribution verdict;
  verdict.norm = norm;
  const v1::MembershipConfig& membership = options_.config->membership();
  {
    absl::ReaderMutexLock lock(&data_mutex_);
    const double published = PublishedNorm();
    verdict.may_overflow = std::max(norm, published) > kSafeNorm;
    const double smallest =
        kSmallestParameter * std::sqrt(static_cast<double>(options_.range.size()));
    if (options_.config->sync().contribution() != v1::SyncConfig::GRADIENT) {
      verdict.cap = (membership.norm_cap() > 0 ? membership.norm_cap() : kDefaultNormCap) *
                    std::max(published, smallest);
    }
  }
  absl::MutexLock lock(&mutex_);
  if (membership.outlier_factor() > 0) verdict.median = norms_.Median().value_or(0);
  if (IsOutlier(verdict.norm, norms_, membership.outlier_factor())) {
    verdict.quarantine = Quarantine::kOutlier;
  } else if (verdict.cap > 0 && verdict.norm > verdict.cap) {
    verdict.quarantine = Quarantine::kAboveCap;
  }
  return verdict;
}

bool FragmentRounds::IsRejected(const std::string& worker_id, int64_t round) const {
  const auto found = rejections_.find(worker_id);
  if (found == rejections_.end() || found->second.empty()) return false;
  // The first element, if it is not positive, is that of all rounds from one on.
  const int64_t first = *found->second.begin();
  return found->second.contains(round) || (first <= 0 && round >= -first);
}

absl::Status FragmentRounds::Reject(const std::string& worker_id, int64_t round, bool undo) {
  absl::MutexLock lock(&mutex_);
  const auto open = static_cast<int64_t>(published_hashes_.size());
  if (round < 0) {
    return absl::InvalidArgumentError(absl::StrCat("a round counts from 1, it is ", round));
  }
  if (round != 0 && round < open) {
    return absl::FailedPreconditionError(
        absl::StrCat("round ", round, " of fragment ", options_.fragment,
                     " is published, and what it merged cannot be taken out: round ", open,
                     " is open; `causeway-coordinator replay --without` says what the run would "
                     "have been"));
  }
  if (closed_ && round == open) {
    return absl::FailedPreconditionError(absl::StrCat(
        "round ", round, " of fragment ", options_.fragment, " is being merged at this moment"));
  }
  // The round that is being merged stays.
  const int64_t from = closed_ ? open + 1 : open;
  std::set<int64_t>& orders = rejections_[worker_id];
  if (undo) {
    const auto order = round != 0                              ? orders.find(round)
                       : orders.empty() || *orders.begin() > 0 ? orders.end()
                                                               : orders.begin();
    if (order == orders.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("nothing is rejected that could be taken back: of worker ", worker_id, ", ",
                       round == 0 ? "all rounds" : absl::StrCat("round ", round), " of fragment ",
                       options_.fragment));
    }
    orders.erase(order);
  } else if (round != 0) {
    orders.insert(round);
  } else if (orders.empty() || *orders.begin() > 0) {
    orders.insert(-from);
  }
  if (orders.empty()) rejections_.erase(worker_id);
  const auto held = contributions_.find(worker_id);
  if (held == contributions_.end() || closed_) return absl::OkStatus();
  held->second.rejected = IsRejected(worker_id, open);
  if (held->second.kept_out()) {
    quarantined_.emplace(open, worker_id);
  } else {
    quarantined_.erase({open, worker_id});
  }
  return absl::OkStatus();
}

std::map<std::string, std::set<int64_t>> FragmentRounds::rejections() const {
  absl::MutexLock lock(&mutex_);
  return rejections_;
}

void FragmentRounds::RestoreRejections(const std::string& worker_id,
                                       const std::set<int64_t>& rounds) {
  absl::MutexLock lock(&mutex_);
  rejections_[worker_id] = rounds;
  const auto open = static_cast<int64_t>(published_hashes_.size());
  const auto held = contributions_.find(worker_id);
  if (held == contributions_.end()) return;
  held->second.rejected = IsRejected(worker_id, open);
  if (held->second.rejected) quarantined_.emplace(open, worker_id);
}

}  // namespace causeway::server
