#include "server/progress_line.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace causeway::server {

std::string ProgressLine(const v1::RunStatus& status) {
  int live = 0;
  double tokens_per_second = 0;
  double bytes_up = 0;
  double bytes_down = 0;
  for (const v1::WorkerStatus& worker : status.workers()) {
    bytes_up += static_cast<double>(worker.bytes_up());
    bytes_down += static_cast<double>(worker.bytes_down());
    if (worker.state() != v1::WorkerStatus::ACTIVE && worker.state() != v1::WorkerStatus::JOINING) {
      continue;
    }
    ++live;
    tokens_per_second += worker.tokens_per_second();
  }
  int64_t rounds = 0;
  std::string waiting;
  for (const v1::FragmentStatus& fragment : status.fragments()) {
    rounds += fragment.published_version();
    if (fragment.contributed_size() > 0 && waiting.empty()) {
      waiting = absl::StrCat("; fragment ", fragment.fragment(), ": ", fragment.waiting_for());
    }
  }
  return absl::StrFormat(
      "step %d of %d, %d workers, %.0f tokens/s, %d rounds, %.1f MB up, %.1f MB down%s",
      status.run_step(), status.config().train().steps(), live, tokens_per_second, rounds,
      bytes_up / 1e6, bytes_down / 1e6, waiting);
}

}  // namespace causeway::server
