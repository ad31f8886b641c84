// Attention in double precision, and rounded to bf16 where the kernels round: what the tests of
// those who compute it on a device compare with.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/backend/cuda/attention_choice.h"

namespace causeway::worker::cuda {

// The results of attention.
struct AttentionTensors {
  std::vector<double> out, log_sum_exp, dqkv;
};

struct AttentionCase {
  AttentionShape shape;
  std::vector<int32_t> documents = {};  // Lengths of each sequence's documents; empty: one.
  double spread = 1;                    // Standard deviation of queries and keys.
  // The provider rounds dk and dv of every query head to bf16 before it adds up a group's.
  bool rounds_heads = false;
};

struct AttentionInputs {
  std::vector<double> qkv, dout;  // Values of bf16.
  std::vector<int32_t> starts;    // Or empty.
};

// The same ones for the same case.
AttentionInputs MakeInputs(const AttentionCase& c);

// Forward and backward pass on the present device.
AttentionTensors OnDevice(AttentionProvider& provider, const AttentionCase& c,
                          const AttentionInputs& inputs);

// The provider's tensors are as close to the CPU backend's, in double precision, as rounding to
// bf16 allows: at most 1.5 times as far off as a computation in double that is rounded likewise.
void ExpectLikeOracle(AttentionProvider& provider, const AttentionCase& c);

}  // namespace causeway::worker::cuda
