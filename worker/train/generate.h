// Text from a model, one token after the other.
#ifndef CAUSEWAY_WORKER_TRAIN_GENERATE_H_
#define CAUSEWAY_WORKER_TRAIN_GENERATE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "worker/backend/cpu/cpu_transformer.h"

namespace causeway::worker {

struct GenerateOptions {
  int tokens = 0;          // To add.
  double temperature = 1;  // 0: always the likeliest token.
  uint64_t seed = 0;
};

// What follows `prompt` (at least one token below vocabulary_size), at most the last
// model.sequence_length() tokens being seen at a time. A pure function of its arguments.
std::vector<int32_t> Generate(CpuTransformer<float>& model, std::span<const float> parameters,
                              int vocabulary_size, std::span<const int32_t> prompt,
                              const GenerateOptions& options);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_TRAIN_GENERATE_H_
