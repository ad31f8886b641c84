// The loops of the outer step, in vectors of whatever the machine has. Each gives the bits of the
// formula at its declaration, evaluated in double value by value without fused multiply-add, with
// one rounding to nearest per stored value: on every instruction set, length and alignment.
//
// Thread-safety: any threads at once, on disjoint arrays. The arrays of one call are equally long
// and do not overlap.
#ifndef CAUSEWAY_SERVER_OUTER_STEP_KERNELS_H_
#define CAUSEWAY_SERVER_OUTER_STEP_KERNELS_H_

#include <span>

namespace causeway::server {

// b = mu * b + g;  theta = theta - lr * (g + mu * b), where the second line reads the stored b.
void NesterovStep(double lr, double mu, std::span<const double> g, std::span<float> theta,
                  std::span<float> b);

// theta = theta - lr * g
void SgdStep(double lr, std::span<const double> g, std::span<float> theta);

// Neither an infinity nor a NaN is among them.
bool AllFinite(std::span<const float> values);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_OUTER_STEP_KERNELS_H_
