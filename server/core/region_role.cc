#include "server/core/region_role.h"

#include "common/params/run_config.h"

namespace causeway::server {
namespace {

// Adds what a region says above of a member, or of the sites below it.
void AddReports(const std::string& id, const Member& member, const v1::Heartbeat& heard,
                v1::Heartbeat& heartbeat) {
  if (member.region()) {
    for (const v1::SiteReport& below : heard.sites()) {
      v1::SiteReport& report = *heartbeat.add_sites();
      report = below;
      report.set_worker_id(absl::StrCat(id, "/", below.worker_id()));
    }
    return;
  }
  v1::SiteReport& report = *heartbeat.add_sites();
  report.set_worker_id(id);
  report.set_step(member.record.step());
  report.set_tokens(heard.tokens());
  report.set_tokens_per_second(heard.tokens_per_second());
  report.set_train_loss(heard.train_loss());
  const double seconds = heard.compute_seconds() + heard.blocked_seconds();
  if (seconds > 0) report.set_compute_utilization(heard.compute_seconds() / seconds);
}

}  // namespace

std::unique_ptr<FragmentRounds> RegionRole::MakeFragment(const FragmentRounds::Options& options) {
  auto fragment = std::make_unique<RegionRounds>(
      options, run_.tier.own_id, [this](RegionRounds& own, absl::StatusOr<RegionDelta> delta) {
        CarryUp(own, std::move(delta));
      });
  fragments_.push_back(fragment.get());
  return fragment;
}

void RegionRole::CarryUp(RegionRounds& fragment, absl::StatusOr<RegionDelta> delta) {
  if (!delta.ok()) return run_.incidents.NoteRoom(delta.status());
  parent_.Carry(*std::move(delta), [this, &fragment](absl::StatusOr<ParentAnswer> answer) {
    OnParentAnswer(fragment, std::move(answer));
  });
}

void RegionRole::OnParentAnswer(RegionRounds& fragment, absl::StatusOr<ParentAnswer> answer) {
  const Run::Call call(run_);
  if (absl::IsCancelled(answer.status()) || !run_.Serving().ok()) return;
  if (absl::IsNotFound(answer.status())) {
    run_.Fail(absl::UnavailableError(absl::StrCat(
                  "the parent has gone on without this region, and no longer keeps the "
                  "answer that it needs (",
                  answer.status().message(), "): start it with a fresh --run_dir")))
        .IgnoreError();
    return;
  }
  if (!answer.ok()) {
    run_.Fail(Annotate(answer.status(), "the parent")).IgnoreError();
    return;
  }
  absl::StatusOr<PublishedRound> published = fragment.AcceptAnswer(*std::move(answer));
  if (!published.ok()) {
    run_.Fail(published.status()).IgnoreError();
    return;
  }
  const v1::Round& record = published->record;
  parent_.Applied(record.fragment(), record.round(), record.published_hash());
  rounds_.Announce(*published);
  fragment.Rest();
  rounds_.Advance(fragment);
}

RegionPlace RegionRole::Place() const {
  RegionPlace place;
  int64_t open_step = std::numeric_limits<int64_t>::max();
  int64_t merged_step = std::numeric_limits<int64_t>::max();
  for (const OpenRound& round : run_.OpenRounds()) {
    open_step = std::min(open_step, round.send_step - 1);
    merged_step = std::min(merged_step, run_.schedule.MergeStep(round.fragment, round.round) - 1);
  }
  absl::MutexLock lock(&run_.mutex);
  place.ready = run_.state.started() ? run_.membership.live() > 0
                                     : run_.membership.active() >= run_.tier.start_members;
  place.step = std::min(open_step, run_.membership.largest_step());
  v1::Heartbeat& heartbeat = place.heartbeat;
  heartbeat.set_step(run_.membership.largest_step());
  heartbeat.set_checkpoint_step(std::min(merged_step, run_.options.config.train().steps()));
  heartbeat.set_pace_milli(1000);
  double loss = 0;
  int training = 0;
  // One site's word about itself must not make the parent refuse them all.
  int64_t tokens = 0;
  for (const auto& [id, member] : Believed(run_.membership.members(), run_.options.config)) {
    const v1::Heartbeat& site = member.record.heartbeat();
    tokens = std::min(kMaxTokens, tokens + std::min(kMaxTokens, member.progress.tokens));
    if (!member.live()) continue;
    AddReports(id, member, site, heartbeat);
    heartbeat.set_compute_seconds(heartbeat.compute_seconds() + site.compute_seconds());
    heartbeat.set_blocked_seconds(heartbeat.blocked_seconds() + site.blocked_seconds());
    heartbeat.set_tokens_per_second(heartbeat.tokens_per_second() + site.tokens_per_second());
    const double step = absl::ToDoubleSeconds(member.progress.step_time());
    if (step <= 0) continue;
    // The fastest site's: it sets where the region will be.
    if (heartbeat.inner_step_seconds() == 0 || step < heartbeat.inner_step_seconds()) {
      heartbeat.set_inner_step_seconds(step);
    }
    loss += site.train_loss();
    ++training;
  }
  heartbeat.set_tokens(tokens);
  if (training > 0) heartbeat.set_train_loss(loss / training);
  return place;
}

absl::Status RegionRole::Begin(int first_slot, const std::vector<int64_t>& next_draws) {
  RETURN_IF_ERROR(run_.Serving());
  Run::Outbox outbox;
  bool starts_now = false;
  std::vector<std::string> live;
  {
    absl::MutexLock lock(&run_.mutex);
    run_.may_start = true;
    if (!run_.state.started()) run_.membership.SetFirstSlot(first_slot);
    for (size_t i = 0; i < next_draws.size(); ++i) {
      if (next_draws[i] <= 0) continue;
      run_.draws.Add("", {{first_slot + static_cast<int>(i), 0, next_draws[i]}}, 0);
    }
    starts_now = run_.StartIfDue();
    if (starts_now) {
      live = run_.membership.LiveIds();
      for (const auto& [id, sink] : run_.sinks) {
        if (run_.membership.Find(id)->record.state() == v1::Member::ACTIVE)
          run_.AddStart(id, outbox);
      }
    }
  }
  if (!starts_now) return absl::OkStatus();
  RETURN_IF_ERROR(run_.SaveMembers(live));
  RETURN_IF_ERROR(run_.SaveRunState());
  run_.Record("training_started", absl::StrCat("training starts with ", live.size(), " workers"),
              {{"workers", live.size()}});
  run_.Send(outbox);
  return absl::OkStatus();
}

absl::Status RegionRole::NoteParentPublished(int fragment, int64_t round) {
  RETURN_IF_ERROR(run_.FindFragment(fragment).status());
  // The next Tick closes what this lets close.
  fragments_[static_cast<size_t>(fragment)]->NoteParentVersion(round);
  return absl::OkStatus();
}

absl::Status RegionRole::Stop(int64_t step) {
  RETURN_IF_ERROR(run_.Serving());
  {
    absl::MutexLock lock(&run_.mutex);
    if (run_.state.stop_step() == step) return absl::OkStatus();
  }
  const auto stop = [&](Run::Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(run_.mutex) {
    run_.state.set_stop_step(step);
    run_.AddDirectives(v1::Directive::STOP_AT_STEP, step, "the run ends there", outbox);
    return absl::OkStatus();
  };
  return run_.Order(stop, "stopping", absl::StrCat("training ends at step ", step),
                    {{"step", step}});
}

void RegionRole::Fail(const absl::Status& why) {
  run_.Fail(absl::UnavailableError(
                absl::StrCat("the parent ended this region's part: ", why.message())))
      .IgnoreError();
}

}  // namespace causeway::server
