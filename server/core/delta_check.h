// Whether a delta is what its header says, and nothing but codes that a merge can take.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "causeway/v1/exchange.pb.h"
#include "common/base/byte_buffer.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"

namespace causeway::server {

// A worker's whole training does not come to more; keeps sums of tokens exact.
inline constexpr int64_t kMaxTokens = int64_t{1} << 48;

// A whole object, and what whoever received it knows of it already.
struct ReceivedObject {
  template <typename Bytes>
  requires std::convertible_to<Bytes, SharedBytes>
  // Implicit: whoever knows nothing hands over the bytes as they are.
  ReceivedObject(Bytes&& the_bytes)  // NOLINT(google-explicit-constructor)
      : bytes(std::forward<Bytes>(the_bytes)) {}

  SharedBytes bytes;
  // TreeHash of the bytes, from checksums that were verified as the leaves came.
  std::optional<uint64_t> tree_hash = {};
  // By leaf, what Rounds::MeasureLeaf said of it: may be empty.
  std::vector<std::vector<double>> squares = {};
};

// Called at most once, without a lock: the round that an object was to come for has closed.
using RoundClosed = std::function<void()>;

// For the deltas of one fragment. Immutable.
class DeltaCheck {
 public:
  // What is referred to outlives the object.
  DeltaCheck(int fragment, const FragmentRange& range, const Codec& codec,
             const v1::RunConfig& config);

  // Codec, size, tokens and draws of a header, as exchange.proto says.
  absl::Status CheckHeader(const v1::PushHeader& header) const;
  // INVALID_ARGUMENT, DATA_LOSS: the object has another size or hash than its header says.
  static absl::Status CheckBytes(const v1::PushHeader& header, const ReceivedObject& object);
  // Whether a delta can only be measured beside the published values. With the other codecs only
  // their number counts for a sum of squares, and `published` below may be empty.
  bool needs_base() const { return needs_base_; }
  // The delta's Euclidean norm; an error if its codes are not valid.
  absl::StatusOr<double> Norm(const ReceivedObject& object, std::span<const float> published) const;
  // Rounds::MeasureLeaf.
  std::vector<double> MeasureLeaf(size_t leaf, std::span<const uint8_t> bytes,
                                  std::span<const float> published) const;

 private:
  // The sum of squares of a codec chunk; an error if its codes are not valid.
  absl::StatusOr<double> SquaresOf(size_t chunk, std::span<const uint8_t> codes,
                                   std::span<const float> published) const;
  // The codec chunks [first, second) that lie in the leaf of an object from end to end.
  std::pair<size_t, size_t> ChunksWithin(size_t leaf) const;
  // Bytes of the codec chunks before that one.
  size_t CodesBegin(size_t codec_chunk) const;

  const int fragment_;
  const size_t values_;
  const size_t codec_chunks_;
  const Codec& codec_;
  const int max_workers_;
  const bool needs_base_;
};

}  // namespace causeway::server
