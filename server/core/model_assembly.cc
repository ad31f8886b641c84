#include "server/core/model_assembly.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/params/tensor_table.h"

namespace causeway::server {
namespace {

constexpr int64_t kChunkBytes = kTreeLeafBytes;
constexpr int64_t kValueBytes = sizeof(float);

float ValueAt(const std::string& bytes, int64_t index) {
  float value = 0;
  std::memcpy(&value, bytes.data() + index * kValueBytes, sizeof(value));
  return value;
}

}  // namespace

std::string ModelAssembly::PlaceOf(int64_t value) const {
  for (const TensorInfo& tensor : RunTensors(config_)) {
    if (value < tensor.size()) return absl::StrCat(tensor.name, ", index ", value);
    value -= tensor.size();
  }
  return "beyond the tensors";
}

absl::Status ModelAssembly::Add(v1::ModelChunk chunk) {
  std::string& data = *chunk.mutable_data();
  const int64_t expected = std::min(kChunkBytes, total_bytes_ - received_bytes_);
  if (expected == 0 || chunk.offset() != received_bytes_ || std::ssize(data) != expected) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the next chunk of the model must be ", expected, " bytes at offset ", received_bytes_,
        " of ", total_bytes_, "; it is ", data.size(), " at ", chunk.offset()));
  }
  for (int64_t i = 0; i < expected / kValueBytes; ++i) {
    if (std::isfinite(ValueAt(data, i))) continue;
    return absl::InvalidArgumentError(absl::StrCat("initial values must be finite; the one of ",
                                                   PlaceOf(received_bytes_ / kValueBytes + i),
                                                   " is ", ValueAt(data, i)));
  }
  hasher_.Update({reinterpret_cast<const uint8_t*>(data.data()), data.size()});
  received_bytes_ += expected;
  chunks_.push_back(std::move(data));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> ModelAssembly::Finish(const FragmentPlan& plan) {
  if (received_bytes_ != total_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model must be ", total_bytes_, " bytes; ", received_bytes_, " came"));
  }
  const uint64_t hash = hasher_.Finish();
  if (hash != tree_hash_) {
    return absl::DataLossError(absl::StrCat("the model was damaged on its way: its values hash to ",
                                            HashToHex(hash), ", its header says ",
                                            HashToHex(tree_hash_), "; bring it again"));
  }
  absl::flat_hash_map<absl::string_view, int64_t> offsets;
  for (const PlacedTensor& placed : plan.tensors()) offsets[placed.info.name] = placed.offset;
  std::vector<float> arena(static_cast<size_t>(plan.arena_size()));
  size_t taken = 0;  // Bytes of the first chunk.
  for (const TensorInfo& tensor : RunTensors(config_)) {
    auto* out = reinterpret_cast<char*>(arena.data() + offsets.at(tensor.name));
    auto left = static_cast<size_t>(tensor.size()) * sizeof(float);
    while (left > 0) {
      const std::string& chunk = chunks_.front();
      const size_t bytes = std::min(left, chunk.size() - taken);
      std::memcpy(out, chunk.data() + taken, bytes);
      out += bytes;
      left -= bytes;
      taken += bytes;
      if (taken == chunk.size()) {
        chunks_.pop_front();
        taken = 0;
      }
    }
  }
  received_bytes_ = 0;
  return arena;
}

}  // namespace causeway::server
