// The order in which the embedding's gradient adds up tokens: made on the host, where the tokens
// come from, while the device works on what came before.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_TOKEN_ORDER_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_TOKEN_ORDER_H_

#include <cstdint>
#include <span>
#include <vector>

namespace causeway::worker::cuda {

// Not thread-safe.
class TokenOrder {
 public:
  explicit TokenOrder(int64_t vocabulary);

  // order = the places of `inputs`, sorted by token; those of one token ascend. Both have the same
  // size, below 2^31, and inputs lie in [0, vocabulary). Linear in tokens + vocabulary.
  void Sort(std::span<const int32_t> inputs, std::span<int32_t> order);

 private:
  std::vector<int32_t> next_;  // Per token: where its next place goes.
};

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_TOKEN_ORDER_H_
