// Which of Hugging Face's tensors hold which of ours.
#ifndef CAUSEWAY_COMMON_HUGGINGFACE_HUGGINGFACE_TENSORS_H_
#define CAUSEWAY_COMMON_HUGGINGFACE_HUGGINGFACE_TENSORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "causeway/v1/config.pb.h"
#include "common/huggingface/huggingface_config.h"

namespace causeway {

// One of our tensors within one of theirs.
struct TensorPart {
  std::string tensor;  // Name in the tensor table.
  int64_t rows = 0;    // Ours, without the vocabulary's padding.
  int64_t cols = 0;
  int64_t first = 0;  // Their row, or with `transposed` their column, where ours begins.
};

struct HuggingFaceTensor {
  std::string name;
  std::vector<int64_t> shape;
  int64_t rows = 0;  // Rows of the shape; a vector is a column.
  int64_t cols = 0;
  bool transposed = false;  // Theirs is [inputs, outputs], as GPT-2's Conv1D has it.
  std::vector<TensorPart> parts;

  int64_t size() const { return rows * cols; }
};

// All of them, in our model's order.
std::vector<HuggingFaceTensor> HuggingFaceTensors(const v1::ModelConfig& model,
                                                  Architecture architecture);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_HUGGINGFACE_HUGGINGFACE_TENSORS_H_
