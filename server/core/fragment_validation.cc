// Whether a contribution is what its header says, nothing but codes that a merge can take, and of a
// size that training can have; and whose are kept out by an operator's order.
#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "server/core/fragment_rounds.h"
#include "server/outer/delta_norm.h"

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

absl::Status FragmentRounds::ValidateCodes(size_t begin, size_t end,
                                           std::span<const uint8_t> codes) const {
  const auto validate = [this](size_t chunk, std::span<const uint8_t> part,
                               std::span<const float> base) {
    const absl::Status status = options_.codec_up->Validate(part, base);
    if (chunk == 0) return status;
    return Annotate(status, absl::StrCat("counted from value ", chunk * kCodecChunk));
  };
  const auto values = std::span(published_).subspan(begin * kCodecChunk);
  if (options_.config->sync().contribution() != v1::SyncConfig::GRADIENT) {
    return validate(begin, codes,
                    values.first(std::min((end - begin) * kCodecChunk, values.size())));
  }
  static constexpr std::array<float, kCodecChunk> kZeros = {};
  for (size_t chunk = begin; chunk < end; ++chunk) {
    const size_t count = std::min(kCodecChunk, values.size() - (chunk - begin) * kCodecChunk);
    RETURN_IF_ERROR(validate(chunk,
                             codes.subspan(CodesBegin(chunk) - CodesBegin(begin),
                                           CodesBegin(chunk + 1) - CodesBegin(chunk)),
                             std::span(kZeros).first(count)));
  }
  return absl::OkStatus();
}

absl::Status FragmentRounds::ValidateLeaf(int64_t round, int64_t leaf,
                                          std::span<const uint8_t> bytes) const {
  const absl::Status not_now = absl::UnavailableError("the round is not open now");
  // A merge would hold up whoever receives.
  if (!data_mutex_.ReaderTryLock()) return not_now;
  bool open = false;
  {
    absl::MutexLock lock(&mutex_);
    open = round == static_cast<int64_t>(published_hashes_.size());
  }
  // Those that lie in the leaf from end to end; VerifyObject checks what lies across a border.
  const size_t offset = static_cast<size_t>(leaf) * kTreeLeafBytes;
  const size_t stride = CodesBegin(1);
  const size_t begin = (offset + stride - 1) / stride;
  const size_t end = offset + bytes.size() == CodesBegin(codec_chunks())
                         ? codec_chunks()
                         : (offset + bytes.size()) / stride;
  absl::Status status = not_now;
  if (open && begin < end) {
    status = ValidateCodes(
        begin, end, bytes.subspan(CodesBegin(begin) - offset, CodesBegin(end) - CodesBegin(begin)));
  } else if (open) {
    status = absl::OkStatus();
  }
  data_mutex_.ReaderUnlock();
  return status;
}

absl::Status FragmentRounds::VerifyObject(const v1::PushHeader& header,
                                          const ReceivedObject& object) const {
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
  // The round stays open while this contribution is under way, so published_ is the base.
  absl::ReaderMutexLock lock(&data_mutex_);
  if (!object.leaves_valid) return ValidateCodes(0, codec_chunks(), bytes);
  for (size_t border = kTreeLeafBytes; border < bytes.size(); border += kTreeLeafBytes) {
    const size_t chunk = border / CodesBegin(1);
    if (CodesBegin(chunk) == border) continue;
    const size_t begin = CodesBegin(chunk);
    RETURN_IF_ERROR(
        ValidateCodes(chunk, chunk + 1, bytes.subspan(begin, CodesBegin(chunk + 1) - begin)));
  }
  return absl::OkStatus();
}

double FragmentRounds::PublishedNorm() const {
  int64_t version = 0;
  {
    absl::MutexLock lock(&mutex_);
    version = static_cast<int64_t>(published_hashes_.size()) - 1;
    if (published_norm_.first == version) return published_norm_.second;
  }
  std::array<double, 4> squares = {};  // Sums that do not wait for each other.
  for (size_t i = 0; i < published_.size(); ++i) {
    squares[i % 4] += double{published_[i]} * double{published_[i]};
  }
  absl::MutexLock lock(&mutex_);
  published_norm_ = {version, std::sqrt((squares[0] + squares[1]) + (squares[2] + squares[3]))};
  return published_norm_.second;
}

absl::StatusOr<double> FragmentRounds::NormOf(std::span<const uint8_t> object) const {
  return DeltaNorm(*options_.codec_up, object, published_,
                   options_.config->sync().contribution() == v1::SyncConfig::GRADIENT);
}

absl::StatusOr<AddedContribution> FragmentRounds::Judge(std::span<const uint8_t> object) const {
  AddedContribution verdict;
  const v1::MembershipConfig& membership = options_.config->membership();
  {
    absl::ReaderMutexLock lock(&data_mutex_);
    ASSIGN_OR_RETURN(verdict.norm, NormOf(object));
    if (options_.config->sync().contribution() != v1::SyncConfig::GRADIENT) {
      const double smallest =
          kSmallestParameter * std::sqrt(static_cast<double>(published_.size()));
      verdict.cap = (membership.norm_cap() > 0 ? membership.norm_cap() : kDefaultNormCap) *
                    std::max(PublishedNorm(), smallest);
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
