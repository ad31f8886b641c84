#include "server/round/membership.h"

#include "common/base/status_macros.h"

namespace causeway::server {
namespace {

// Counts one more Join of the member.
absl::Status TakeJoin(Member& member, absl::Duration now) {
  const double since = absl::FDivDuration(now - member.joined_at, kJoinInterval);
  const double left = std::min(kJoinsAtOnce, member.joins_left + since);
  if (left < 1) {
    const absl::Duration wait = absl::Ceil((1 - left) * kJoinInterval, absl::Seconds(1));
    return absl::ResourceExhaustedError(absl::StrCat(
        member.record.worker_id(), " attaches again and again, ", kJoinsAtOnce,
        " times more than one every ", absl::FormatDuration(kJoinInterval), "; it may in ",
        absl::FormatDuration(wait), ": look at its log for what ends its sessions"));
  }
  member.joins_left = left - 1;
  member.joined_at = now;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Member> Membership::Join(const std::string& id, uint64_t process_nonce,
                                        bool has_checkpoint, absl::Duration now, bool own_data,
                                        int sites) {
  const auto found = members_.find(id);
  Member* const former = found == members_.end() ? nullptr : &found->second;
  const bool live = former != nullptr && former->live();
  const bool same_process = former != nullptr && former->record.process_nonce() == process_nonce;
  if (live && !same_process && former->attached) {
    return absl::AlreadyExistsError(absl::StrCat(
        "a live worker has the id ", id,
        "; give every worker an id of its own, or, if you restarted it, try again when the lease "
        "of its former process ends in ",
        absl::FormatDuration(absl::Ceil(std::max(absl::ZeroDuration(), former->lease_end - now),
                                        absl::Seconds(1)))));
  }
  const int wanted = std::max(1, sites);
  if (!live && this->live() > max_workers_ - wanted) {
    return absl::ResourceExhaustedError(
        sites == 0
            ? absl::StrCat("the run has its ", max_workers_, " workers (membership.max_workers); ",
                           id, " can join when one of them leaves")
            : absl::StrCat("the run takes ", max_workers_,
                           " workers (membership.max_workers) and has ", this->live(),
                           "; the region ", id, " asks for ", sites,
                           ": it can join when others leave, or with fewer --sites"));
  }
  if (live && former->record.sites() != sites) {
    return absl::FailedPreconditionError(absl::StrCat(
        id, " is a member with ", former->record.sites(), " sites and comes back with ", sites,
        ": give it the same --sites, or let its lease end first"));
  }
  Member member;
  if (former != nullptr) {
    RETURN_IF_ERROR(TakeJoin(*former, now));
    member = *former;
  }
  v1::Member& record = member.record;
  if (!live) {
    ASSIGN_OR_RETURN(const int slot, FreeSlot(former, wanted));
    record.set_data_slot(slot);
    record.set_sites(sites);
  }
  HadSlots(member);
  record.set_was_ready(record.was_ready() && (same_process || has_checkpoint));
  if (!live || !(same_process || record.was_ready())) record.set_state(v1::Member::JOINING);
  record.set_worker_id(id);
  record.set_process_nonce(process_nonce);
  record.set_own_data(own_data);
  record.set_incarnation(record.incarnation() + 1);
  member.attached = true;
  member.lease_end = now + lease_;
  // Its training and its orders still hold; its speed is measured again.
  if (!same_process) member.progress.inner_step_time = absl::ZeroDuration();
  members_[id] = member;
  return member;
}

const Member& Membership::Restore(v1::Member record, absl::Duration now) {
  Member& member = members_[record.worker_id()];
  member.record = std::move(record);
  // An order to keep out all rounds from one on.
  member.rejected = std::ranges::any_of(
      member.record.rejected(),
      [](const v1::RejectedRounds& out) { return out.rounds_size() > 0 && out.rounds(0) <= 0; });
  member.progress.tokens = member.record.heartbeat().tokens();
  member.attached = false;
  HadSlots(member);
  member.lease_end = now + lease_ + kReturnTime;
  largest_step_ = std::max(largest_step_, member.record.step());
  return member;
}

void Membership::HadSlots(Member& member) {
  auto& slots = *member.record.mutable_had_slots();
  for (int i = 0; i < member.workers(); ++i) {
    const int slot = member.record.data_slot() + i;
    if (!member.had_slot(slot)) slots.Add(slot);
  }
  std::ranges::sort(slots);
}

absl::StatusOr<int> Membership::FreeSlot(const Member* former, int workers) const {
  enum : int { kFree, kReserved, kTaken };
  std::vector<int> slots(static_cast<size_t>(max_workers_), kFree);
  for (const auto& [id, member] : members_) {
    for (int i = 0; i < member.workers(); ++i) {
      const int slot = member.record.data_slot() - first_slot_ + i;
      if (slot < 0 || slot >= max_workers_) continue;
      int& entry = slots[static_cast<size_t>(slot)];
      entry = std::max<int>(entry, member.live() ? kTaken : kReserved);
    }
  }
  // The worst of the slots from there on; kTaken where they end too soon.
  const auto worst = [&](int begin) {
    if (begin < 0 || begin + workers > max_workers_) return static_cast<int>(kTaken);
    return *std::max_element(slots.begin() + begin, slots.begin() + begin + workers);
  };
  if (former != nullptr && worst(former->record.data_slot() - first_slot_) != kTaken) {
    return former->record.data_slot();
  }
  // A slot that nobody ever had is preferred, so that whoever went away finds its own again.
  int best = 0;
  for (int begin = 1; begin + workers <= max_workers_; ++begin) {
    if (worst(begin) < worst(best)) best = begin;
  }
  if (worst(best) == kTaken) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no ", workers, " parts of the data side by side are free among the ",
                     max_workers_, " of this run: raise membership.max_workers in the next one"));
  }
  return first_slot_ + best;
}

absl::Status Membership::Check(const std::string& id, uint64_t incarnation) const {
  const Member* const member = Find(id);
  if (member == nullptr) {
    return absl::PermissionDeniedError(
        absl::StrCat(id, " is not a member of this run; attach a session first"));
  }
  const v1::Member& record = member->record;
  if (incarnation != record.incarnation()) {
    return absl::AbortedError(absl::StrCat("incarnation ", incarnation, " of ", id,
                                           " is fenced off: incarnation ", record.incarnation(),
                                           " has attached"));
  }
  if (record.state() == v1::Member::LOST) {
    return absl::UnavailableError(
        absl::StrCat(id, " was silent longer than its lease; attach again to go on"));
  }
  if (record.state() == v1::Member::LEFT) {
    return absl::FailedPreconditionError(absl::StrCat(id, " has left the run; attach again first"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Member*> Membership::FindLive(const std::string& id, uint64_t incarnation) {
  RETURN_IF_ERROR(Check(id, incarnation));
  return &members_.find(id)->second;
}

void Membership::Advance(Member& member, int64_t step) {
  member.record.set_step(std::max(member.record.step(), step));
  largest_step_ = std::max(largest_step_, step);
}

absl::Status Membership::Ready(const std::string& id, uint64_t incarnation, int64_t step,
                               bool anew) {
  ASSIGN_OR_RETURN(Member* const member, FindLive(id, incarnation));
  v1::Member& record = member->record;
  record.set_active_from_step(
      record.was_ready() && !anew ? std::min(record.active_from_step(), step) : step);
  record.set_was_ready(true);
  record.set_state(v1::Member::ACTIVE);
  Advance(*member, step);
  return absl::OkStatus();
}

absl::Status Membership::Heartbeat(const std::string& id, uint64_t incarnation, int64_t step,
                                   absl::Duration now, const Progress& progress) {
  ASSIGN_OR_RETURN(Member* const member, FindLive(id, incarnation));
  member->lease_end = now + lease_;
  member->progress = progress;
  member->progress.reported_at = now;
  Advance(*member, step);
  return absl::OkStatus();
}

void Membership::NumberByName() {
  int slot = first_slot_;
  for (auto& [id, member] : members_) {
    if (!member.live()) continue;
    member.record.set_data_slot(slot);
    slot += member.workers();
    HadSlots(member);
  }
}

void Membership::SetRejected(const std::string& id, bool rejected) {
  const auto found = members_.find(id);
  if (found != members_.end()) found->second.rejected = rejected;
}

void Membership::OrderPace(const std::string& id, int64_t pace_milli, int64_t from_step) {
  v1::Member* const record = Account(id);
  if (record == nullptr) return;
  record->set_ordered_pace_milli(pace_milli);
  record->set_ordered_from_step(from_step);
}

absl::Status Membership::Leave(const std::string& id, uint64_t incarnation) {
  ASSIGN_OR_RETURN(Member* const member, FindLive(id, incarnation));
  member->record.set_state(v1::Member::LEFT);
  member->attached = false;
  return absl::OkStatus();
}

absl::Status Membership::Expel(const std::string& id, uint64_t incarnation) {
  ASSIGN_OR_RETURN(Member* const member, FindLive(id, incarnation));
  member->record.set_state(v1::Member::LOST);
  member->attached = false;
  return absl::OkStatus();
}

void Membership::Disconnected(const std::string& id, uint64_t incarnation) {
  const auto found = members_.find(id);
  if (found == members_.end() || found->second.record.incarnation() != incarnation) return;
  found->second.attached = false;
}

std::vector<std::string> Membership::Expire(absl::Duration now) {
  std::vector<std::string> lost;
  for (auto& [id, member] : members_) {
    if (!member.live() || member.lease_end > now) continue;
    member.record.set_state(v1::Member::LOST);
    member.attached = false;
    lost.push_back(id);
  }
  return lost;
}

const Member* Membership::Find(const std::string& id) const {
  const auto found = members_.find(id);
  return found == members_.end() ? nullptr : &found->second;
}

v1::Member* Membership::Account(const std::string& id) {
  const auto found = members_.find(id);
  return found == members_.end() ? nullptr : &found->second.record;
}

std::vector<std::string> Membership::LiveIds() const {
  std::vector<std::string> ids;
  for (const auto& [id, member] : members_) {
    if (member.live()) ids.push_back(id);
  }
  return ids;
}

int Membership::live() const {
  int workers = 0;
  for (const auto& [id, member] : members_) workers += member.live() ? member.workers() : 0;
  return workers;
}

int Membership::active() const {
  int workers = 0;
  for (const auto& [id, member] : members_) {
    workers += member.record.state() == v1::Member::ACTIVE ? member.workers() : 0;
  }
  return workers;
}

}  // namespace causeway::server
