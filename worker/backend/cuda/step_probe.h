// How a training step is measured from inside: where there is a probe, it is told of every kernel
// and product that the step enqueues, with the step's own buffers.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace causeway::worker::cuda {

// Names what bounds a kernel: the rate of the largest products, of mma.sync, or of a copy.
enum class KernelLimit { kProducts, kAttention, kMemory };

// One kernel of a step, or those that are counted as one. FLOPs are those that have to be done,
// once: what attention's backward pass computes again does not count. Bytes likewise: every input
// read once, every output written once.
struct StepKernel {
  absl::string_view name;  // Outlives the step.
  KernelLimit limit = KernelLimit::kMemory;
  double flops = 0;
  double bytes = 0;       // 0 for products.
  bool in_place = false;  // Enqueued again, it works on other values.
};

// Describes products [m, k] [k, n].
inline StepKernel ProductKernel(absl::string_view name, int64_t m, int64_t n, int64_t k) {
  const double flops =
      2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  return {.name = name, .limit = KernelLimit::kProducts, .flops = flops};
}
inline StepKernel MemoryKernel(absl::string_view name, int64_t bytes, bool in_place = false) {
  return {.name = name, .bytes = static_cast<double>(bytes), .in_place = in_place};
}

// Belongs to one GPU, used by its thread.
class StepProbe {
 public:
  virtual ~StepProbe() = default;
  // False: steps are enqueued as if there were no probe, recorded as graphs, too.
  virtual bool is_active() const = 0;
  // Does `enqueue`, which enqueues the kernel on the stream, once or several times. May wait.
  virtual absl::Status Enqueue(const StepKernel& kernel,
                               const std::function<absl::Status()>& enqueue,
                               cudaStream_t stream) = 0;
};

// Enqueues by way of the probe, if there is one that is active. `enqueue` returns a status or
// nothing.
template <typename Enqueue>
absl::Status Probed(StepProbe* probe, const StepKernel& kernel, cudaStream_t stream,
                    const Enqueue& enqueue) {
  const auto with_status = [&]() -> absl::Status {
    if constexpr (std::is_void_v<std::invoke_result_t<Enqueue>>) {
      enqueue();
      return absl::OkStatus();
    } else {
      return enqueue();
    }
  };
  if (probe == nullptr || !probe->is_active()) return with_status();
  return probe->Enqueue(kernel, with_status, stream);
}

}  // namespace causeway::worker::cuda
