// Tells where the time of a training step goes.
#ifndef CAUSEWAY_WORKER_BACKEND_CPU_KERNEL_TIMER_H_
#define CAUSEWAY_WORKER_BACKEND_CPU_KERNEL_TIMER_H_

#include <array>
#include <chrono>
#include <cstddef>

namespace causeway::worker {

enum class KernelKind {
  kEmbedding,
  kNorm,          // RMSNorm with the residual additions.
  kBlockProduct,  // The blocks' matrix products, attention's excepted.
  kRotate,        // QK-norm and RoPE.
  kAttention,
  kActivation,
  kHeadProduct,  // The classifier's matrix products.
  kClassifier,
};
inline constexpr std::array<const char*, 8> kKernelKindNames = {
    "embedding", "norm",       "block_products", "rotate",
    "attention", "activation", "head_products",  "classifier"};

// Seconds, indexed by KernelKind.
using KernelSeconds = std::array<double, kKernelKindNames.size()>;

// Adds the time of its own life.
class KernelTimer {
 public:
  KernelTimer(KernelSeconds& seconds, KernelKind kind)
      : total_(seconds[static_cast<size_t>(kind)]), start_(std::chrono::steady_clock::now()) {}
  ~KernelTimer() {
    total_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  KernelTimer(const KernelTimer&) = delete;
  KernelTimer& operator=(const KernelTimer&) = delete;

 private:
  double& total_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_BACKEND_CPU_KERNEL_TIMER_H_
