#include "server/round/outlier.h"

#include <algorithm>
#include <vector>

namespace causeway::server {

void NormHistory::Add(double norm) {
  norms_.push_back(norm);
  if (norms_.size() > kNormWindow) norms_.pop_front();
}

std::optional<double> NormHistory::Median() const {
  if (norms_.size() < kNormMinimum) return std::nullopt;
  std::vector<double> sorted(norms_.begin(), norms_.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : 0.5 * (sorted[middle - 1] + sorted[middle]);
}

bool IsOutlier(double norm, const NormHistory& history, double factor) {
  const std::optional<double> median = history.Median();
  return factor > 0 && median.has_value() && *median > 0 && norm > factor * *median;
}

}  // namespace causeway::server
