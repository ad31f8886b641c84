// So many requests per second for each peer, with a reserve for bursts: a token bucket per name.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace causeway::server {

// Thread-safe.
class RateLimiter {
 public:
  // `per_second` requests over time and `burst` at once, at most `max_peers` names with a part of
  // their reserve spent. The clock outlives the limiter.
  RateLimiter(double per_second, double burst, size_t max_peers, const Clock& clock)
      : per_second_(per_second), burst_(burst), max_peers_(max_peers), clock_(clock) {}

  // Counts a request as `cost`, at most the burst. False if this peer has used up what it may, or
  // if it is new while `max_peers` others are busy.
  bool Take(const std::string& peer, double cost = 1) {
    cost = std::min(cost, burst_);
    const absl::Duration now = clock_.Monotonic();
    absl::MutexLock lock(&mutex_);
    auto found = buckets_.find(peer);
    if (found == buckets_.end()) {
      if (buckets_.size() >= max_peers_) {
        std::erase_if(buckets_, [&](const auto& of) { return LeftAt(of.second, now) >= burst_; });
      }
      if (buckets_.size() >= max_peers_) return false;
      found = buckets_.emplace(peer, Bucket{burst_, now}).first;
    }
    Bucket& bucket = found->second;
    bucket = {LeftAt(bucket, now), now};
    if (bucket.left < cost) return false;
    bucket.left -= cost;
    return true;
  }

 private:
  struct Bucket {
    double left = 0;
    absl::Duration at;
  };
  double LeftAt(const Bucket& bucket, absl::Duration now) const {
    return std::min(burst_, bucket.left + per_second_ * absl::ToDoubleSeconds(now - bucket.at));
  }

  const double per_second_;
  const double burst_;
  const size_t max_peers_;
  const Clock& clock_;
  absl::Mutex mutex_;
  std::unordered_map<std::string, Bucket> buckets_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server
