#include "worker/sync/site_calls.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway::worker {

absl::Status CheckShares(const v1::TrainConfig& train, int ranks, absl::string_view what,
                         absl::string_view fewer) {
  const int micro_batches = train.batch_sequences() / train.micro_batch_sequences();
  if (micro_batches % ranks == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a step has ", micro_batches, " micro-batches (train.batch_sequences = ",
      train.batch_sequences(), " / train.micro_batch_sequences = ", train.micro_batch_sequences(),
      "), which ", ranks, " ", what, " cannot share evenly: ", fewer,
      " or start the run with a smaller train.micro_batch_sequences"));
}

StepTokens::StepTokens(const v1::TrainConfig& train, const v1::ModelConfig& model)
    : micro_batches_(train.batch_sequences() / train.micro_batch_sequences()),
      tokens_(static_cast<size_t>(train.micro_batch_sequences()) *
              static_cast<size_t>(model.sequence_length())),
      documents_(train.document_masking()) {}

absl::Status StepTokens::Read(const MicroBatchReader& read) {
  values_.resize(static_cast<size_t>(micro_batches_) * stride());
  for (int64_t i = 0; i < micro_batches_; ++i) {
    int32_t* const at = values_.data() + static_cast<size_t>(i) * stride();
    RETURN_IF_ERROR(read(i, {.inputs = {at, tokens_},
                             .targets = {at + tokens_, tokens_},
                             .document_starts = {at + 2 * tokens_, documents_ ? tokens_ : 0}}));
  }
  return absl::OkStatus();
}

void StepTokens::Copy(const int32_t* from, const MicroBatch& out) {
  for (const std::span<int32_t> part : {out.inputs, out.targets, out.document_starts}) {
    std::copy_n(from, part.size(), part.begin());
    from += part.size();
  }
}

MicroBatchReader StepTokens::Reader() const {
  return [this](int64_t index, const MicroBatch& out) {
    Copy(values_.data() + static_cast<size_t>(index) * stride(), out);
    return absl::OkStatus();
  };
}

ByteBuffer StepTokens::Share(const RankRange& range) const {
  const size_t bytes = stride() * sizeof(int32_t);
  ByteBuffer share(static_cast<size_t>(micro_batches_ / range.ranks * range.count) * bytes);
  uint8_t* to = share.data();
  for (int64_t i = 0; i < micro_batches_; ++i) {
    const int64_t rank = i % range.ranks;
    if (rank < range.first || rank >= range.first + range.count) continue;
    std::memcpy(to, values_.data() + static_cast<size_t>(i) * stride(), bytes);
    to += bytes;
  }
  return share;
}

absl::StatusOr<MicroBatchReader> StepTokens::ReaderOf(std::span<const uint8_t> share,
                                                      const RankRange& range) const {
  const int64_t micro_batches = micro_batches_ / range.ranks * range.count;
  const size_t bytes = static_cast<size_t>(micro_batches) * stride() * sizeof(int32_t);
  if (share.size() != bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a share of a step's tokens takes ", bytes,
                                                   " bytes; ", share.size(), " came"));
  }
  return [this, share, range](int64_t index, const MicroBatch& out) -> absl::Status {
    const int64_t place = index % range.ranks - range.first;
    if (index < 0 || index >= micro_batches_ || place < 0 || place >= range.count) {
      return absl::InvalidArgumentError(
          absl::StrCat("micro-batch ", index, " is none of this process's"));
    }
    const auto slot = static_cast<size_t>(index / range.ranks * range.count + place);
    Copy(reinterpret_cast<const int32_t*>(share.data()) + slot * stride(), out);
    return absl::OkStatus();
  };
}

}  // namespace causeway::worker
