// The square of a vector's norm, with the same bits on every machine.
#ifndef CAUSEWAY_WORKER_BACKEND_CPU_SUM_OF_SQUARES_H_
#define CAUSEWAY_WORKER_BACKEND_CPU_SUM_OF_SQUARES_H_

#include <array>
#include <cstddef>
#include <span>

namespace causeway::worker {

// In double. Value i goes to lane i mod 16, and the lanes are added in order: compilers may use
// vectors of any width for that without changing the result.
template <typename T>
double SumOfSquares(std::span<const T> values) {
  constexpr size_t kLanes = 16;
  std::array<double, kLanes> lanes = {};
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(values[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (size_t lane = 0; i < values.size(); ++i, ++lane) {
    const auto value = static_cast<double>(values[i]);
    lanes[lane] += value * value;
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_BACKEND_CPU_SUM_OF_SQUARES_H_
