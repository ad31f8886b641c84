#include "tests/reference/codec_cases.h"

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/codec/codec.h"
#include "nlohmann/json.hpp"

namespace causeway {
namespace {

struct Arrays {
  std::vector<float> base, target, residual;
};

constexpr const char* kKinds[] = {"gaussian",    "heavy-tails", "ties",
                                  "mostly-zero", "tiny",        "any-exponent"};
// One value, short and whole blocks, a chunk and a bit more.
constexpr size_t kSizes[] = {1, 63, 64, 65, 4200};

// The difference that a case is about; what it is split into comes later.
float Difference(absl::string_view kind, uint64_t stream, uint64_t i) {
  const double normal = RandomNormal(1, stream, i);
  const uint64_t bits = RandomBits(2, stream, i);
  if (kind == "heavy-tails") return static_cast<float>(1e-3 * normal * normal * normal * normal);
  // Quarters of small integers, each block with a power of two as its largest: halfway cases.
  if (kind == "ties") {
    const auto quarters = static_cast<float>(static_cast<int>(bits % 57) - 28);
    return i % 64 == 0 ? std::ldexp(7.0F, static_cast<int>(i / 64 % 9) - 4)
                       : std::ldexp(quarters * 0.25F, static_cast<int>(i / 64 % 9) - 4);
  }
  // Whole blocks of zeros, and blocks with one value that is not.
  if (kind == "mostly-zero") {
    return i % 128 == bits % 128 ? static_cast<float>(normal) : (bits % 2 == 0 ? 0.0F : -0.0F);
  }
  if (kind == "tiny")
    return static_cast<float>(normal * std::ldexp(1.0, -130 - static_cast<int>(bits % 19)));
  if (kind == "any-exponent") {
    return std::ldexp(static_cast<float>(normal), static_cast<int>(bits % 190) - 100);
  }
  return static_cast<float>(2e-3 * normal);
}

Arrays DrawArrays(absl::string_view kind, size_t size, bool feedback, uint64_t stream) {
  Arrays arrays;
  for (size_t i = 0; i < size; ++i) {
    const float difference = Difference(kind, stream, i);
    // Exact differences against a base of zero, rounded ones against another.
    const float base =
        kind == "gaussian" ? static_cast<float>(0.05 * RandomNormal(3, stream, i)) : 0.0F;
    arrays.base.push_back(base);
    arrays.target.push_back(base - difference);
    if (feedback) {
      arrays.residual.push_back(difference * static_cast<float>(RandomNormal(4, stream, i) / 8));
    }
  }
  return arrays;
}

template <typename T>
void Append(const std::vector<T>& values, std::vector<uint8_t>& file) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(values.data());
  file.insert(file.end(), bytes, bytes + values.size() * sizeof(T));
}

// Returns the number of encoded bytes.
absl::StatusOr<size_t> RunCase(const Codec& codec, Arrays arrays, float decay,
                               std::vector<uint8_t>& file) {
  Append(arrays.base, file);
  Append(arrays.target, file);
  Append(arrays.residual, file);
  std::vector<uint8_t> encoded(codec.EncodedBytes(arrays.base.size()));
  RETURN_IF_ERROR(codec.Encode(arrays.base, arrays.target, {arrays.residual, decay}, encoded));
  std::vector<double> decoded(arrays.base.size());
  RETURN_IF_ERROR(codec.Accumulate(encoded, arrays.base, 1.0, decoded));
  RETURN_IF_ERROR(codec.Apply(encoded, arrays.base));
  Append(encoded, file);
  Append(arrays.residual, file);
  Append(decoded, file);
  Append(arrays.base, file);
  return encoded.size();
}

}  // namespace

absl::Status WriteCodecCases(const std::string& folder) {
  std::vector<uint8_t> file;
  nlohmann::json cases = nlohmann::json::array();
  for (const v1::Codec id : kCodecs) {
    ASSIGN_OR_RETURN(const Codec* const codec, FindCodec(id));
    for (const absl::string_view kind : kKinds) {
      for (const size_t size : kSizes) {
        for (const double decay : {0.0, 1.0, 0.95}) {  // 0: no error feedback.
          const bool feedback = decay != 0;
          const absl::StatusOr<size_t> bytes =
              RunCase(*codec, DrawArrays(kind, size, feedback, cases.size()),
                      static_cast<float>(decay), file);
          RETURN_IF_ERROR(Annotate(
              bytes.status(), absl::StrCat(v1::Codec_Name(id), ", ", kind, ", ", size, " values")));
          cases.push_back({{"codec", v1::Codec_Name(id)},
                           {"name", std::string(kind)},
                           {"values", size},
                           {"bytes", *bytes},
                           {"feedback", feedback},
                           {"decay", decay}});
        }
      }
    }
  }
  RETURN_IF_ERROR(WriteTraceFile(folder, "cases.bin", std::span<const uint8_t>(file)));
  return WriteTraceText(folder, "codecs.json", cases.dump());
}

}  // namespace causeway
