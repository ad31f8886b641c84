// The loop of the trimmed mean, in vectors of whatever the machine has; the same bits on all.
#ifndef CAUSEWAY_SERVER_OUTER_TRIM_KERNEL_H_
#define CAUSEWAY_SERVER_OUTER_TRIM_KERNEL_H_

#include <cstddef>
#include <span>

namespace causeway::server {

// mean[i] = sum w_m * v_m[i] / sum w_m, both in order of m and from zero, over those m whose v_m[i]
// is neither among the `trim` first nor among the `trim` last when sorted, equal ones by m. Row m
// of `values` begins at m * stride. All values are finite, weights above 0, 2 * trim below their
// number.
//
// Thread-safety: any threads at once, on disjoint arrays.
void TrimmedMean(std::span<const double> weights, size_t trim, std::span<const double> values,
                 size_t stride, std::span<double> mean);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_OUTER_TRIM_KERNEL_H_
