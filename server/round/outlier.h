// The guard: finds contributions so much larger than their fragment's usual ones that something
// must be wrong with them.
//
// It judges the Euclidean norm of the decoded delta against the median of the norms that were
// merged last. The history advances when a round closes, in order of worker id. So the verdict on a
// contribution does not depend on the order of arrival.
#ifndef CAUSEWAY_SERVER_ROUND_OUTLIER_H_
#define CAUSEWAY_SERVER_ROUND_OUTLIER_H_

#include <cstddef>
#include <deque>
#include <optional>

namespace causeway::server {

// Norms that count for the median, and the number needed before anybody is judged: the first rounds
// of a run differ from each other (warm-up, a short first period).
inline constexpr size_t kNormWindow = 32;
inline constexpr size_t kNormMinimum = 8;

// The norms of one fragment. Not thread-safe.
class NormHistory {
 public:
  void Add(double norm);
  // Returns nothing before there are kNormMinimum norms.
  std::optional<double> Median() const;

 private:
  std::deque<double> norms_;  // At most kNormWindow.
};

// True if norm > factor * median. Never without a median, with a median of 0, or a factor of 0.
bool IsOutlier(double norm, const NormHistory& history, double factor);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_ROUND_OUTLIER_H_
