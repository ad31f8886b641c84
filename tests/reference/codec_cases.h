// Arrays that are awkward to encode, and what the real codecs make of them.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace causeway {

// Writes into `folder`, which exists, codecs.json, a list of cases {codec, name, values, bytes,
// feedback}, and files that hold all cases one after the other:
//
//   base.f32, target.f32, residual.f32   what goes in (a residual only where there is feedback)
//   encoded.bin, left_out.f32            what Encode makes of it (left_out: the new residual)
//   decoded.f64                          what Accumulate adds with weight 1
//   applied.f32                          what Apply makes of the base
absl::Status WriteCodecCases(const std::string& folder);

}  // namespace causeway
