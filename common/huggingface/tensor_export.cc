#include "common/huggingface/tensor_export.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/codec/bf16.h"
#include "common/files/safetensors_writer.h"

namespace causeway {
namespace {

TensorSource MakeSource(const TensorInfo& tensor, std::span<const float> values, bool bf16) {
  const uint64_t value_bytes = bf16 ? 2 : 4;
  return {.name = tensor.name,
          .dtype = bf16 ? "BF16" : "F32",
          .shape = tensor.shape,
          .bytes = values.size() * value_bytes,
          .read = [values, bf16](uint64_t begin, std::span<uint8_t> out) {
            if (!bf16) {
              std::memcpy(out.data(), reinterpret_cast<const uint8_t*>(values.data()) + begin,
                          out.size());
              return;
            }
            for (size_t at = 0; at < out.size(); at += 2) {
              const float value = values[(static_cast<size_t>(begin) + at) / 2];
              const uint16_t bits = std::isnan(value) ? uint16_t{0x7fc0} : Bf16Nearest(value);
              std::memcpy(out.data() + at, &bits, sizeof(bits));
            }
          }};
}

}  // namespace

absl::Status ExportTensors(FileSystem& file_system, const std::vector<TensorInfo>& tensors,
                           const FragmentPlan& plan, std::span<const float> parameters, bool bf16,
                           uint64_t max_file_bytes, const std::string& folder) {
  absl::flat_hash_map<absl::string_view, int64_t> offsets;
  for (const PlacedTensor& placed : plan.tensors()) offsets[placed.info.name] = placed.offset;
  std::vector<TensorSource> sources;
  for (const TensorInfo& tensor : tensors) {
    sources.push_back(MakeSource(tensor,
                                 parameters.subspan(static_cast<size_t>(offsets.at(tensor.name)),
                                                    static_cast<size_t>(tensor.size())),
                                 bf16));
  }
  RETURN_IF_ERROR(CreateFoldersDurably(file_system, folder));
  return WriteSafetensors(file_system, folder, sources, max_file_bytes);
}

}  // namespace causeway
