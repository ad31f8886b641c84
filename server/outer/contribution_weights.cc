#include "server/outer/contribution_weights.h"

#include "absl/strings/str_cat.h"

namespace causeway::server {

absl::StatusOr<std::vector<double>> ContributionWeights(std::span<const int64_t> tokens,
                                                        v1::MembershipConfig::Weighting weighting) {
  int64_t total = 0;
  for (const int64_t count : tokens) {
    if (count < 0 || __builtin_add_overflow(total, count, &total)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a contribution's tokens must be a count, and all together fit 63 bits; one has ",
          count));
    }
  }
  if (weighting != v1::MembershipConfig::TOKENS || total == 0) {
    return std::vector<double>(tokens.size(), 1.0 / static_cast<double>(tokens.size()));
  }
  std::vector<double> weights;
  weights.reserve(tokens.size());
  for (const int64_t count : tokens) {
    weights.push_back(static_cast<double>(count) / static_cast<double>(total));
  }
  return weights;
}

}  // namespace causeway::server
