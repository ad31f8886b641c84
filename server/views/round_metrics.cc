#include "server/views/run_metrics.h"

#include <algorithm>

namespace causeway::server {
namespace {

prometheus::Histogram MakeHistogram() {
  return prometheus::Histogram({0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000});
}

}  // namespace

RoundMetrics::RoundMetrics(const Clock* clock, RunHistory* history)
    : clock_(clock),
      history_(history),
      phases_{{MakeHistogram(), MakeHistogram(), MakeHistogram(), MakeHistogram()}} {}

void RoundMetrics::Observe(Phase phase, double from_unix_s, double to_unix_s) {
  if (from_unix_s > 0 && to_unix_s > 0) {
    phases_[phase].Observe(std::max(0.0, to_unix_s - from_unix_s));
  }
}

void RoundMetrics::OnContributed(const v1::PushHeader& header, bool quarantined) {
  if (quarantined) ++quarantined_;
  const PushTimes push =
      history_->Round(header.fragment(), header.round()).workers[header.worker_id()];
  Observe(kTransfer, push.sent_unix_s, push.arrived_unix_s);
}

void RoundMetrics::OnPublished(const v1::Round& round, const std::vector<std::string>& missing) {
  if (!round.contributors().empty()) {
    Observe(kCollect, round.first_unix_s(), round.closed_unix_s());
    Observe(kMerge, round.closed_unix_s(), round.published_unix_s());
  }
  if (!missing.empty() || round.contributors().empty()) ++incomplete_;
  merged_ += round.contributors_size();
}

void RoundMetrics::OnApplied(const std::string& worker_id, int fragment, int64_t round) {
  RoundTimes times = history_->Round(fragment, round);
  Observe(kApply, times.published_unix_s, times.workers[worker_id].applied_unix_s);
}

void RoundMetrics::AddTo(MetricPage& page, const v1::RunStatus& status) {
  constexpr const char* kNames[kPhases] = {"transfer", "collect", "merge", "apply"};
  for (size_t phase = 0; phase < kPhases; ++phase) {
    page.Histogram("causeway_round_phase_seconds", "Of rounds.", phases_[phase].Collect().histogram,
                   {{"phase", kNames[phase]}});
  }
  const double now = absl::ToDoubleSeconds(clock_->Now() - absl::UnixEpoch());
  double oldest = 0;
  int open = 0;
  for (const v1::FragmentStatus& fragment : status.fragments()) {
    if (fragment.contributed_size() == 0) continue;
    ++open;
    const int64_t round = fragment.published_version() + 1;
    for (const auto& [id, push] : history_->Round(fragment.fragment(), round).workers) {
      if (push.arrived_unix_s > 0) oldest = std::max(oldest, now - push.arrived_unix_s);
    }
  }
  page.Gauge("causeway_rounds_open", "With contributions.", open);
  page.Gauge("causeway_round_oldest_open_seconds", "Since its first contribution; 0: none is.",
             oldest);
  page.Counter("causeway_rounds_incomplete_total", "Closed without a worker that was expected.",
               static_cast<double>(incomplete_));
  const std::string contributions = "causeway_contributions_total";
  const std::string help = "Deltas: merged, late (their round had closed) or quarantined.";
  page.Counter(contributions, help, static_cast<double>(merged_), {{"outcome", "merged"}});
  page.Counter(contributions, help, static_cast<double>(quarantined_),
               {{"outcome", "quarantined"}});
}

}  // namespace causeway::server
