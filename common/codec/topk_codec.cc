#include "common/codec/topk_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/codec/bf16.h"
#include "common/codec/block_formats.h"
#include "common/codec/codec_kernels.h"
#include "common/codec/difference_codec.h"

namespace causeway {
namespace {

using ChunkLayout = TopKChunkLayout;

constexpr size_t kChunkBytes = ChunkLayout(kCodecChunk).bytes;

// The bitmap of the places: up to 2 * kTopK bits, the first in the lowest bit.
class PlaceBits {
 public:
  PlaceBits() = default;
  explicit PlaceBits(std::span<const uint8_t> bytes) {
    std::memcpy(words_.data(), bytes.data(), bytes.size());
  }
  void Set(size_t bit) { words_[bit / 64] |= uint64_t{1} << (bit % 64); }
  size_t Count() const {
    return static_cast<size_t>(std::popcount(words_[0]) + std::popcount(words_[1]));
  }
  bool Any() const { return (words_[0] | words_[1]) != 0; }
  // The lowest bit that is set, which is then cleared.
  size_t Pop() {
    const size_t word = words_[0] != 0 ? 0 : 1;
    const auto bit = static_cast<size_t>(std::countr_zero(words_[word]));
    words_[word] &= words_[word] - 1;
    return word * 64 + bit;
  }
  void Write(std::span<uint8_t> bytes) const {
    std::memcpy(bytes.data(), words_.data(), bytes.size());
  }

 private:
  std::array<uint64_t, 2> words_ = {};
};

float Read(const uint8_t* scale) {
  return Bf16ToFloat(static_cast<uint16_t>(scale[0] | scale[1] << 8));
}

void Write(uint16_t bits, uint8_t* scale) {
  scale[0] = static_cast<uint8_t>(bits & 0xffU);
  scale[1] = static_cast<uint8_t>(bits >> 8);
}

// Values sent of a chunk: at most kTopK values, in order of index.
struct Sent {
  size_t count = 0;
  std::array<uint16_t, kTopK + 1> index;  // TopKSelect wants one more.
  std::array<float, kTopK> value;
};

// --- Levels --------------------------------------------------------------------------------------

// The selected magnitudes, filled up with zeros.
struct Magnitudes {
  size_t count = 0;
  std::array<double, kTopK> values = {};
};

double Total(const std::array<double, kTopKSums>& s) {
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

void SplitPlainly(const double* magnitudes, double threshold, TopKSums& sums) {
  sums = {};
  for (size_t i = 0; i < kTopK; ++i) {
    const bool is_large = magnitudes[i] > threshold;
    (is_large ? sums.large : sums.small)[i % kTopKSums] += magnitudes[i];
    sums.large_count[i % kTopKSums] += is_large ? 1 : 0;
  }
}

// The means of the magnitudes up to a threshold and beyond it; 0 where there are none.
struct Means {
  double small;
  double large;
};

class Levels {
 public:
  // `split` is SplitPlainly or a vector kernel.
  Levels(const Magnitudes& magnitudes, TopKSplit split) : magnitudes_(magnitudes), split_(split) {
    // Lloyd's iteration.
    constexpr double kAboveAll = 1e300;
    threshold_ = Around(kAboveAll).small;
    means_ = Around(threshold_);
    for (int step = 0; step < kTopKSteps && means_.large != 0; ++step) {
      threshold_ = (means_.small + means_.large) / 2;
      means_ = Around(threshold_);
    }
  }

  double threshold() const { return threshold_; }
  const Means& means() const { return means_; }

 private:
  Means Around(double threshold) const {
    TopKSums sums;
    split_(magnitudes_.values.data(), threshold, sums);
    const double large_count = Total(sums.large_count);
    const double small_count = static_cast<double>(magnitudes_.count) - large_count;
    return {small_count == 0 ? 0.0 : Total(sums.small) / small_count,
            large_count == 0 ? 0.0 : Total(sums.large) / large_count};
  }

  const Magnitudes& magnitudes_;
  TopKSplit split_;
  double threshold_;
  Means means_;
};

// --- One chunk -----------------------------------------------------------------------------------

// The plain selection: the indices of the `most` largest magnitudes, of equal ones the first.
// Returns how many there are.
size_t SelectPlainly(std::span<const float> difference, size_t most, uint16_t* selected) {
  std::array<int32_t, kCodecChunk> store;
  const auto magnitudes = std::span(store).first(difference.size());
  for (size_t i = 0; i < difference.size(); ++i) {
    const auto bits = std::bit_cast<int32_t>(std::abs(difference[i]));
    magnitudes[i] = bits < kTopKSmallestBits ? 0 : bits;
  }
  std::array<int32_t, kCodecChunk> sorted_store;
  const auto sorted = std::span(sorted_store).first(difference.size());
  std::copy(magnitudes.begin(), magnitudes.end(), sorted.begin());
  const auto last = sorted.begin() + static_cast<ptrdiff_t>(most - 1);
  std::nth_element(sorted.begin(), last, sorted.end(), std::greater<>());
  const int32_t least = *last;
  size_t equal = most - static_cast<size_t>(std::count_if(
                            sorted.begin(), last, [=](int32_t bits) { return bits > least; }));
  size_t count = 0;
  for (size_t i = 0; i < magnitudes.size(); ++i) {
    const int32_t bits = magnitudes[i];
    if (bits == 0 || bits < least || (bits == least && equal == 0)) continue;
    if (bits == least) --equal;
    selected[count++] = static_cast<uint16_t>(i);
  }
  return count;
}

// Writes the chunk of which `selected` is sent, and makes sent.value what is decoded of it.
void Pack(std::span<const float> difference, TopKSplit split, Sent& sent, std::span<uint8_t> out) {
  const ChunkLayout layout(difference.size());
  std::fill(out.begin(), out.end(), uint8_t{0});
  if (sent.count == 0) return;
  Magnitudes magnitudes;
  magnitudes.count = sent.count;
  for (size_t i = 0; i < sent.count; ++i) {
    magnitudes.values[i] = static_cast<double>(std::abs(difference[sent.index[i]]));
  }
  const Levels fitted(magnitudes, split);
  const std::array<uint16_t, 2> scales = {Bf16Nearest(static_cast<float>(fitted.means().small)),
                                          Bf16Nearest(static_cast<float>(fitted.means().large))};
  const std::array<float, 2> levels = {Bf16ToFloat(scales[0]), Bf16ToFloat(scales[1])};
  Write(scales[0], out.data());
  Write(scales[1], out.data() + sizeof(uint16_t));
  PlaceBits places;
  uint8_t* const entries = out.data() + layout.entries_offset;
  for (size_t i = 0; i < sent.count; ++i) {
    const size_t index = sent.index[i];
    const unsigned is_large = magnitudes.values[i] > fitted.threshold() ? 1 : 0;
    const uint32_t sign = std::bit_cast<uint32_t>(difference[index]) & 0x80000000U;
    const unsigned code = is_large * kTopKLarge | (sign >> 31) * kTopKNegative;
    places.Set(index / kCodecBlock + i);
    entries[i] = static_cast<uint8_t>((index & kTopKPlaceMask) | code << kTopKPlaceBits);
    sent.value[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(levels[is_large]) | sign);
  }
  places.Write(out.subspan(layout.places_offset, layout.entries_offset - layout.places_offset));
}

absl::Status CheckScale(const uint8_t* scale) {
  const auto bits = static_cast<unsigned>(scale[0] | scale[1] << 8);
  if (bits == 0 || (bits >= kSmallestScaleBits && bits <= kLargestScaleBits)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("the scale 0x%04x is not a bf16 from 2^-100 to 2^100", bits));
}

// Reads a chunk of `values` values; INVALID_ARGUMENT for what Pack does not make.
absl::Status Unpack(std::span<const uint8_t> bytes, size_t values, Sent& sent) {
  const ChunkLayout layout(values);
  RETURN_IF_ERROR(CheckScale(bytes.data()));
  RETURN_IF_ERROR(CheckScale(bytes.data() + sizeof(uint16_t)));
  const std::array<float, 2> levels = {Read(bytes.data()), Read(bytes.data() + sizeof(uint16_t))};
  PlaceBits places(
      bytes.subspan(layout.places_offset, layout.entries_offset - layout.places_offset));
  sent.count = places.Count();
  if (sent.count > layout.blocks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d values are marked as sent, and at most %d can be", sent.count, layout.blocks));
  }
  const auto entries = bytes.subspan(layout.entries_offset);
  size_t next = 0;  // The least index that may come.
  for (size_t i = 0; places.Any(); ++i) {
    const size_t block = places.Pop() - i;
    const unsigned entry = entries[i];
    const size_t index = block * kCodecBlock + (entry & kTopKPlaceMask);
    const unsigned code = entry >> kTopKPlaceBits;
    if (index >= values) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the index %d is beyond the chunk's %d values", index, values));
    }
    if (index < next) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the index %d does not follow the one before it", index));
    }
    next = index + 1;
    const float level = levels[code & kTopKLarge];
    if (level == 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the value at index %d has a scale of zero", index));
    }
    sent.index[i] = static_cast<uint16_t>(index);
    sent.value[i] = (code & kTopKNegative) != 0 ? -level : level;
  }
  const auto rest = entries.subspan(sent.count);
  if (std::any_of(rest.begin(), rest.end(), [](uint8_t byte) { return byte != 0; })) {
    return absl::InvalidArgumentError("the unused entries must be zero");
  }
  return absl::OkStatus();
}

// --- The codec -----------------------------------------------------------------------------------

class TopK2 final : public Codec {
 public:
  explicit TopK2(CodecPath path) : path_(path) {}

  v1::Codec id() const override { return v1::TOPK2; }
  absl::string_view name() const override { return "topk2"; }
  bool needs_error_feedback() const override { return true; }

  size_t EncodedBytes(size_t values) const override {
    return values / kCodecChunk * kChunkBytes + ChunkLayout(values % kCodecChunk).bytes;
  }

  absl::Status Encode(std::span<const float> base, std::span<const float> target,
                      const ErrorFeedback& feedback, std::span<uint8_t> out) const override {
    RETURN_IF_ERROR(
        CheckEncodeSizes(*this, base.size(), target.size(), feedback.residual.size(), out.size()));
    const TopKKernels* const kernels = path_ == CodecPath::kVector ? FindTopKKernels() : nullptr;
    const TopKSplit split = kernels == nullptr ? &SplitPlainly : kernels->split;
    alignas(64) std::array<float, kCodecChunk> difference_store;
    Sent sent;
    for (size_t begin = 0; begin < base.size(); begin += kCodecChunk) {
      const size_t values = std::min(kCodecChunk, base.size() - begin);
      const size_t most = ChunkLayout(values).blocks;
      const std::span<float> residual =
          feedback.residual.empty() ? feedback.residual : feedback.residual.subspan(begin, values);
      const auto difference = std::span(difference_store).first(values);
      sent.count = kTopKNotSelected;
      if (kernels != nullptr) {
        sent.count = kernels->select(base.data() + begin, target.data() + begin,
                                     residual.empty() ? nullptr : residual.data(), feedback.decay,
                                     values, most, difference.data(), sent.index.data());
      }
      if (sent.count == kTopKNotSelected) {
        RETURN_IF_ERROR(Subtract(base, target, feedback, begin, difference));
        sent.count = SelectPlainly(difference, most, sent.index.data());
      }
      Pack(difference, split, sent,
           out.subspan(begin / kCodecChunk * kChunkBytes, ChunkLayout(values).bytes));
      if (residual.empty()) continue;
      std::copy(difference.begin(), difference.end(), residual.begin());
      for (size_t i = 0; i < sent.count; ++i) residual[sent.index[i]] -= sent.value[i];
    }
    return absl::OkStatus();
  }

  absl::Status Accumulate(std::span<const uint8_t> encoded, std::span<const float> /*base*/,
                          double weight, std::span<double> sum) const override {
    return Decode(encoded, sum.size(), [&](size_t index, float delta) {
      sum[index] += weight * static_cast<double>(delta);
      return absl::OkStatus();
    });
  }

  absl::Status Apply(std::span<const uint8_t> encoded, std::span<float> values) const override {
    return Decode(encoded, values.size(), [&](size_t index, float delta) {
      const float base = values[index];
      values[index] = base - delta;
      return std::isfinite(values[index]) ? absl::OkStatus()
                                          : NotFiniteAfterwards(index, base, delta);
    });
  }

  absl::Status Validate(std::span<const uint8_t> encoded,
                        std::span<const float> base) const override {
    return Decode(encoded, base.size(), [&](size_t index, float delta) {
      return std::isfinite(base[index] - delta) ? absl::OkStatus()
                                                : NotFiniteAfterwards(index, base[index], delta);
    });
  }

 protected:
  absl::Status AddSquares(std::span<const uint8_t> encoded, std::span<const float> base,
                          std::span<double, kSquareSums> sums) const override {
    return Decode(encoded, base.size(), [&](size_t index, float delta) {
      sums[index % kSquareSums] += double{delta} * double{delta};
      return absl::OkStatus();
    });
  }

 private:
  absl::Status Subtract(std::span<const float> base, std::span<const float> target,
                        const ErrorFeedback& feedback, size_t begin,
                        std::span<float> difference) const {
    constexpr float kLargest = std::bit_cast<float>(kTopKLargestBits);
    for (size_t i = 0; i < difference.size(); ++i) {
      const size_t index = begin + i;
      difference[i] = base[index] - target[index];
      if (!feedback.residual.empty()) difference[i] += feedback.decay * feedback.residual[index];
      // NaNs and infinities fail this, too.
      if (!(std::abs(difference[i]) <= kLargest)) {
        return TooLarge(*this, index, difference[i], base[index], target[index], kLargest);
      }
    }
    return absl::OkStatus();
  }

  // Hands every value that was sent to `visit`.
  template <typename Visit>
  absl::Status Decode(std::span<const uint8_t> encoded, size_t values, Visit visit) const {
    RETURN_IF_ERROR(CheckEncodedSize(*this, encoded.size(), values));
    Sent sent;
    for (size_t begin = 0; begin < values; begin += kCodecChunk) {
      const size_t chunk = std::min(kCodecChunk, values - begin);
      const absl::Status status =
          Unpack(encoded.subspan(begin / kCodecChunk * kChunkBytes, ChunkLayout(chunk).bytes),
                 chunk, sent);
      if (!status.ok()) {
        return Annotate(status,
                        absl::StrCat("values ", begin, " to ", begin + chunk - 1, " in ", name()));
      }
      for (size_t i = 0; i < sent.count; ++i) {
        RETURN_IF_ERROR(visit(begin + sent.index[i], sent.value[i]));
      }
    }
    return absl::OkStatus();
  }

  CodecPath path_;
};

}  // namespace

const Codec* TopK2Codec(CodecPath path) {
  static const TopK2 vector(CodecPath::kVector);
  static const TopK2 scalar(CodecPath::kScalar);
  return path == CodecPath::kVector ? &vector : &scalar;
}

}  // namespace causeway
