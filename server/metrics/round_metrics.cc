#include "server/metrics/round_metrics.h"

#include <algorithm>

namespace causeway::server {
namespace {

// Rounds of a fragment that workers may still be applying.
constexpr size_t kPublishedKept = 8;

prometheus::Histogram MakeHistogram() {
  return prometheus::Histogram({0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000});
}

}  // namespace

RoundMetrics::RoundMetrics(const Clock* clock)
    : clock_(clock),
      phases_{{MakeHistogram(), MakeHistogram(), MakeHistogram(), MakeHistogram()}} {}

void RoundMetrics::OnPushBegun(const v1::PushHeader& header) {
  absl::MutexLock lock(&mutex_);
  Admitted& admitted = fragments_[header.fragment()].admitted[header.worker_id()];
  if (admitted.round == header.round()) return;  // Further streams, and further tries.
  admitted = {header.round(), clock_->Monotonic()};
}

void RoundMetrics::OnContributed(const v1::PushHeader& header, bool quarantined) {
  const absl::Duration now = clock_->Monotonic();
  absl::MutexLock lock(&mutex_);
  Fragment& fragment = fragments_[header.fragment()];
  if (quarantined) ++quarantined_;
  if (fragment.first_round < header.round()) {
    fragment.first_round = header.round();
    fragment.first = now;
  }
  const auto admitted = fragment.admitted.find(header.worker_id());
  if (admitted == fragment.admitted.end() || admitted->second.round != header.round()) return;
  phases_[kTransfer].Observe(absl::ToDoubleSeconds(now - admitted->second.since));
  fragment.admitted.erase(admitted);
}

void RoundMetrics::OnPublished(const RoundRecord& round, const std::vector<std::string>& missing) {
  const absl::Duration now = clock_->Monotonic();
  if (!round.contributors.empty()) {
    phases_[kCollect].Observe(std::max(0.0, round.closed_unix_s - round.first_unix_s));
    phases_[kMerge].Observe(std::max(0.0, round.published_unix_s - round.closed_unix_s));
  }
  absl::MutexLock lock(&mutex_);
  if (!missing.empty() || round.contributors.empty()) ++incomplete_;
  merged_ += std::ssize(round.contributors);
  Fragment& fragment = fragments_[round.fragment];
  std::erase_if(fragment.admitted,
                [&](const auto& entry) { return entry.second.round <= round.round; });
  fragment.published.emplace_back(round.round, now);
  if (fragment.published.size() > kPublishedKept) fragment.published.pop_front();
}

void RoundMetrics::OnApplied(const std::string& /*worker_id*/, int fragment, int64_t round) {
  const absl::Duration now = clock_->Monotonic();
  absl::MutexLock lock(&mutex_);
  for (const auto& [published, since] : fragments_[fragment].published) {
    if (published == round) phases_[kApply].Observe(absl::ToDoubleSeconds(now - since));
  }
}

void RoundMetrics::AddTo(MetricPage& page, const std::vector<int>& open_fragments) {
  constexpr const char* kNames[kPhases] = {"transfer", "collect", "merge", "apply"};
  for (size_t phase = 0; phase < kPhases; ++phase) {
    page.Histogram("causeway_round_phase_seconds", "Of rounds.", phases_[phase].Collect().histogram,
                   {{"phase", kNames[phase]}});
  }
  const absl::Duration now = clock_->Monotonic();
  absl::Duration oldest = absl::ZeroDuration();
  absl::MutexLock lock(&mutex_);
  for (const int index : open_fragments) {
    Fragment& fragment = fragments_[index];
    const bool is_known = fragment.published.empty()
                              ? fragment.first_round > 0
                              : fragment.first_round > fragment.published.back().first;
    if (!is_known) {
      fragment.first_round = fragment.published.empty() ? 1 : fragment.published.back().first + 1;
      fragment.first = now;
    }
    oldest = std::max(oldest, now - fragment.first);
  }
  page.Gauge("causeway_rounds_open", "With contributions.",
             static_cast<double>(open_fragments.size()));
  page.Gauge("causeway_round_oldest_open_seconds", "Since its first contribution; 0: none is.",
             absl::ToDoubleSeconds(oldest));
  page.Counter("causeway_rounds_incomplete_total", "Closed without a worker that was expected.",
               static_cast<double>(incomplete_));
  const std::string contributions = "causeway_contributions_total";
  const std::string help = "Deltas: merged, late (their round had closed) or quarantined.";
  page.Counter(contributions, help, static_cast<double>(merged_), {{"outcome", "merged"}});
  page.Counter(contributions, help, static_cast<double>(quarantined_),
               {{"outcome", "quarantined"}});
}

}  // namespace causeway::server
