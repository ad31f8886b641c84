// CoordinatorImpl as a region: between its sites and its parent.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/params/run_config.h"
#include "server/core/coordinator_impl.h"
#include "server/round/plausibility.h"

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
  report.set_step(member.step);
  report.set_tokens(heard.tokens());
  report.set_tokens_per_second(heard.tokens_per_second());
  report.set_train_loss(heard.train_loss());
  const double seconds = heard.compute_seconds() + heard.blocked_seconds();
  if (seconds > 0) report.set_compute_utilization(heard.compute_seconds() / seconds);
}

absl::Status NoRegion() {
  return absl::FailedPreconditionError("this coordinator has no parent: it is the run's hub");
}

}  // namespace

absl::StatusOr<RegionPlace> Coordinator::Place() const { return NoRegion(); }
absl::Status Coordinator::BeginUnderParent(int, const std::vector<int64_t>&) { return NoRegion(); }
absl::Status Coordinator::NoteParentPublished(int, int64_t) { return NoRegion(); }
absl::Status Coordinator::StopUnderParent(int64_t) { return NoRegion(); }
absl::Status Coordinator::FailUnderParent(const absl::Status&) { return NoRegion(); }

void CoordinatorImpl::CarryUp(FragmentRounds& fragment) {
  std::optional<RegionDelta> delta = fragment.TakeUpward();
  if (!delta.has_value()) return;
  options_.region->parent->Carry(*std::move(delta),
                                 [this, &fragment](absl::StatusOr<ParentAnswer> answer) {
                                   OnParentAnswer(fragment, std::move(answer));
                                 });
}

void CoordinatorImpl::OnParentAnswer(FragmentRounds& fragment,
                                     absl::StatusOr<ParentAnswer> answer) {
  const Call call(*this);
  if (absl::IsCancelled(answer.status()) || !Serving().ok()) return;
  if (absl::IsNotFound(answer.status())) {
    Fail(absl::UnavailableError(
             absl::StrCat("the parent has gone on without this region, and no longer keeps the "
                          "answer that it needs (",
                          answer.status().message(), "): start it with a fresh --run_dir")))
        .IgnoreError();
    return;
  }
  if (!answer.ok()) {
    Fail(Annotate(answer.status(), "the parent")).IgnoreError();
    return;
  }
  absl::StatusOr<PublishedRound> published = fragment.AcceptAnswer(*std::move(answer));
  if (!published.ok()) {
    Fail(published.status()).IgnoreError();
    return;
  }
  const v1::Round& record = published->record;
  options_.region->parent->Applied(record.fragment(), record.round(), record.published_hash());
  Announce(*published);
  fragment.Rest();
  Advance(fragment);
}

absl::StatusOr<RegionPlace> CoordinatorImpl::Place() const {
  if (!region()) return NoRegion();
  RegionPlace place;
  int64_t open_step = std::numeric_limits<int64_t>::max();
  int64_t merged_step = std::numeric_limits<int64_t>::max();
  for (const OpenRound& round : OpenRounds()) {
    open_step = std::min(open_step, round.send_step - 1);
    merged_step = std::min(merged_step, schedule_.MergeStep(round.fragment, round.round) - 1);
  }
  absl::MutexLock lock(&members_mutex_);
  place.ready =
      state_.started() ? membership_.live() > 0 : membership_.active() >= options_.region->sites;
  place.step = std::min(open_step, membership_.largest_step());
  v1::Heartbeat& heartbeat = place.heartbeat;
  heartbeat.set_step(membership_.largest_step());
  heartbeat.set_checkpoint_step(std::min(merged_step, options_.config.train().steps()));
  heartbeat.set_pace_milli(1000);
  double loss = 0;
  int training = 0;
  // One site's word about itself must not make the parent refuse them all.
  int64_t tokens = 0;
  for (const auto& [id, member] : Believed(membership_.members(), options_.config)) {
    const auto account = accounts_.find(id);
    if (account == accounts_.end()) continue;
    const v1::Heartbeat& site = account->second.heartbeat();
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

absl::Status CoordinatorImpl::BeginUnderParent(int first_slot,
                                               const std::vector<int64_t>& next_draws) {
  if (!region()) return NoRegion();
  RETURN_IF_ERROR(Serving());
  Outbox outbox;
  bool starts_now = false;
  std::vector<std::string> live;
  {
    absl::MutexLock lock(&members_mutex_);
    parent_started_ = true;
    if (!state_.started()) membership_.SetFirstSlot(first_slot);
    for (size_t i = 0; i < next_draws.size(); ++i) {
      if (next_draws[i] <= 0) continue;
      draws_.Add("", {{first_slot + static_cast<int>(i), 0, next_draws[i]}}, 0);
    }
    starts_now = StartIfDue();
    if (starts_now) {
      live = membership_.LiveIds();
      for (const auto& [id, sink] : sinks_) {
        if (membership_.Find(id)->state == v1::Member::ACTIVE) AddStart(id, outbox);
      }
    }
  }
  if (!starts_now) return absl::OkStatus();
  RETURN_IF_ERROR(SaveMembers(live));
  RETURN_IF_ERROR(SaveRunState());
  Record("training_started", absl::StrCat("training starts with ", live.size(), " workers"),
         {{"workers", live.size()}});
  Send(outbox);
  return absl::OkStatus();
}

absl::Status CoordinatorImpl::NoteParentPublished(int fragment, int64_t round) {
  if (!region()) return NoRegion();
  ASSIGN_OR_RETURN(FragmentRounds* const found, FindFragment(fragment));
  found->NoteParentVersion(round);  // The next Tick closes what this lets close.
  return absl::OkStatus();
}

absl::Status CoordinatorImpl::StopUnderParent(int64_t step) {
  if (!region()) return NoRegion();
  RETURN_IF_ERROR(Serving());
  Outbox outbox;
  {
    absl::MutexLock lock(&members_mutex_);
    if (state_.stop_step() == step) return absl::OkStatus();
    state_.set_stop_step(step);
    for (const auto& [id, sink] : sinks_) {
      AddDirective(v1::Directive::STOP_AT_STEP, step, "the run ends there", id, outbox);
    }
  }
  RETURN_IF_ERROR(SaveRunState());
  Record("stopping", absl::StrCat("training ends at step ", step), {{"step", step}});
  Send(outbox);
  return absl::OkStatus();
}

absl::Status CoordinatorImpl::FailUnderParent(const absl::Status& why) {
  if (!region()) return NoRegion();
  Fail(absl::UnavailableError(absl::StrCat("the parent ended this region's part: ", why.message())))
      .IgnoreError();
  return absl::OkStatus();
}

}  // namespace causeway::server
