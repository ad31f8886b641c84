// The angles of rotary position embeddings.
#ifndef CAUSEWAY_COMMON_PARAMS_ROPE_H_
#define CAUSEWAY_COMMON_PARAMS_ROPE_H_

#include <vector>

#include "causeway/v1/config.pb.h"

namespace causeway {

// Radians per position of each of the head_dim / 2 pairs of a head, scaled as the model says.
// `model` must be complete. Zeros for a model of learned positions: nothing is turned.
std::vector<double> RopeFrequencies(const v1::ModelConfig& model);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_PARAMS_ROPE_H_
