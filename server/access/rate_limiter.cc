#include "server/access/rate_limiter.h"

#include <algorithm>

namespace causeway::server {

double RateLimiter::LeftAt(const Bucket& bucket, absl::Duration now) const {
  return std::min(burst_, bucket.left + per_second_ * absl::ToDoubleSeconds(now - bucket.at));
}

void RateLimiter::ForgetRested(absl::Duration now) {
  std::erase_if(buckets_, [&](const auto& entry) { return LeftAt(entry.second, now) >= burst_; });
}

bool RateLimiter::Take(const std::string& peer, double cost) {
  cost = std::min(cost, burst_);
  const absl::Duration now = clock_.Monotonic();
  absl::MutexLock lock(&mutex_);
  auto found = buckets_.find(peer);
  if (found == buckets_.end()) {
    if (buckets_.size() >= max_peers_) ForgetRested(now);
    if (buckets_.size() >= max_peers_) return false;
    found = buckets_.emplace(peer, Bucket{burst_, now}).first;
  }
  Bucket& bucket = found->second;
  bucket = {LeftAt(bucket, now), now};
  if (bucket.left < cost) return false;
  bucket.left -= cost;
  return true;
}

}  // namespace causeway::server
