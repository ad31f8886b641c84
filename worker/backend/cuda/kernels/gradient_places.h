// Where a backward pass leaves the fp32 gradients of weights: all of the arena in one array, or
// runs of it in buffers, of which some share their memory (staged_gradients.h).
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_GRADIENT_PLACES_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_GRADIENT_PLACES_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

namespace causeway::worker::cuda {

// Immutable; owns no memory of the device.
class GradientPlaces {
 public:
  // The gradients from `begin` on in the arena, up to the next place, lie at `data`.
  struct Place {
    int64_t begin = 0;
    float* data = nullptr;
  };

  // The whole arena; null where no gradients are computed.
  explicit GradientPlaces(float* arena) : places_{{0, arena}} {}
  // In arena order, the first from 0 on.
  explicit GradientPlaces(std::vector<Place> places) : places_(std::move(places)) {}

  // Where the tensor at `offset` >= 0 in the arena has its gradient.
  float* At(int64_t offset) const {
    const auto after = std::ranges::upper_bound(places_, offset, {}, &Place::begin);
    const Place& place = *std::prev(after);
    return place.data + (offset - place.begin);
  }

 private:
  std::vector<Place> places_;
};

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_GRADIENT_PLACES_H_
