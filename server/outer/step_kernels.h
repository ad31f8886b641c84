// The loops of the outer step, in vectors of whatever the machine has. Each gives the bits of the
// formula at its declaration, evaluated in double value by value without fused multiply-add, with
// one rounding to nearest per stored value: on every instruction set, length and alignment.
//
// Thread-safety: any threads at once, on disjoint arrays. The arrays of one call are equally long
// and do not overlap.
#pragma once

#include <cstddef>
#include <span>

namespace causeway::server {

// b = mu * b + g;  theta = theta - lr * (g + mu * b), where the second line reads the stored b.
void NesterovStep(double lr, double mu, std::span<const double> g, std::span<float> theta,
                  std::span<float> b);

// theta = theta - lr * g
void SgdStep(double lr, std::span<const double> g, std::span<float> theta);

struct AdamRates {
  double learning_rate, beta1, beta2, epsilon;
  double correction1, correction2;  // 1 - beta^step.
};

// m = beta1 * m + (1 - beta1) * g
// v = beta2 * v + (1 - beta2) * (g * g)
// theta = theta - lr * ((m / correction1) / (sqrt(v / correction2) + epsilon))
// where the last line reads the stored m and v.
void AdamStep(const AdamRates& rates, std::span<const double> g, std::span<float> theta,
              std::span<float> m, std::span<float> v);

// The sum of squares, in eight sums: value i counts in sum i mod 8, in order of index; all together
// are ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7)).
double SumOfSquares(std::span<const double> values);
double SumOfSquares(std::span<const float> values);

// Neither an infinity nor a NaN is among them.
bool AllFinite(std::span<const float> values);

// The loop of the trimmed mean, in vectors of whatever the machine has; the same bits on all.

// mean[i] = sum w_m * v_m[i] / sum w_m, both in order of m and from zero, over those m whose v_m[i]
// is neither among the `trim` first nor among the `trim` last when sorted, equal ones by m. Row m
// of `values` begins at m * stride. All values are finite, weights above 0, 2 * trim below their
// number.
//
// Thread-safety: any threads at once, on disjoint arrays.
void TrimmedMean(std::span<const double> weights, size_t trim, std::span<const double> values,
                 size_t stride, std::span<double> mean);

}  // namespace causeway::server
