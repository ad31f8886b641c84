#include "server/standby/leadership.h"

#include "absl/strings/str_join.h"

namespace causeway::server {
namespace {

// The share of a lease after which this clock says that it is over: clocks differ in their rates.
constexpr double kTrusted = 0.9;
// A copy that is so near is asked to come into the set.
constexpr int64_t kNearCommits = 100;

}  // namespace

Leadership::Leadership(Registry& registry, Standbys& standbys, Options options)
    : registry_(registry), standbys_(standbys), options_(std::move(options)) {}

absl::Status Leadership::Take() {
  ASSIGN_OR_RETURN(view_, registry_.Read());
  const absl::Duration now = options_.clock->Monotonic();
  if (!view_.leader.empty()) {
    if (view_.leader == options_.name) {
      if (registry_.KeepAlive().ok()) {  // Taken already, by this process.
        Adopt(now);
        return absl::OkStatus();
      }
      return absl::UnavailableError("the lease of this copy's former process lasts still");
    }
    return absl::FailedPreconditionError(
        absl::StrCat(view_.leader, " at ", view_.address,
                     " leads this run: follow it (causeway-coordinator follow --of=", view_.address,
                     "); whoever follows takes over when it is gone"));
  }
  if (!view_.in_sync.empty() && !view_.in_sync.contains(options_.name)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this folder, ", options_.name,
        ", may lack what workers were told: only these have all of it: ",
        absl::StrJoin(view_.in_sync, ", "), ". Start one of them, and follow it with this one"));
  }
  ASSIGN_OR_RETURN(const bool leads,
                   registry_.Lead(view_, options_.name, options_.address, options_.ttl));
  if (!leads) return absl::UnavailableError("another copy was faster: look again");
  ASSIGN_OR_RETURN(view_, registry_.Read());
  if (view_.leader != options_.name) {
    return absl::UnavailableError("the lead was lost at once: look again");
  }
  Adopt(now);
  return absl::OkStatus();
}

void Leadership::Adopt(absl::Duration since) {
  kept_at_ = since;
  until_ = since + kTrusted * options_.ttl;
  standbys_.LeadUntil(until_);
  Require();
}

void Leadership::Tick() {
  if (lost_) return;
  KeepLease();
  if (!lost_) KeepSet();
}

void Leadership::KeepLease() {
  const absl::Duration now = options_.clock->Monotonic();
  if (now - kept_at_ >= options_.ttl / 4) {
    const absl::Status kept = registry_.KeepAlive();
    if (kept.ok()) {
      kept_at_ = now;
      until_ = now + kTrusted * options_.ttl;
      standbys_.LeadUntil(until_);
    } else if (absl::IsFailedPrecondition(kept)) {
      return Lose(std::string(kept.message()));
    }
  }
  if (options_.clock->Monotonic() >= until_) {
    Lose(absl::StrCat("the registry did not answer for ", absl::FormatDuration(options_.ttl)));
  }
}

void Leadership::KeepSet() {
  if (unknown_) Settle();
  if (unknown_ || lost_) return;
  const std::set<std::string> late = standbys_.Late(options_.patience);
  if (!late.empty()) TakeOut(late);
  if (!unknown_ && !lost_) LetIn();
}

void Leadership::TakeOut(const std::set<std::string>& late) {
  if (late.contains(joining_)) {
    joining_.clear();
    Require();
  }
  std::set<std::string> names = view_.in_sync;
  std::erase_if(names, [&](const std::string& name) { return late.contains(name); });
  if (names == view_.in_sync || !ChangeSet(names)) return;
  for (const std::string& name : late) {
    options_.events->Record(
        "standby_out_of_sync",
        absl::StrCat(
            "goes on without standby ", name, ", which made no step for ",
            absl::FormatDuration(options_.patience), "; in sync are ", absl::StrJoin(names, ", "),
            names.size() == 1 ? ": what is told from now on is on this machine alone" : ""),
        {{"standby", name}, {"in_sync", names}});
  }
}

void Leadership::LetIn() {
  const std::vector<Standbys::Copy> following = standbys_.Following();
  const auto find = [&](const std::string& name) {
    return std::ranges::find(following, name, &Standbys::Copy::name);
  };
  if (joining_.empty()) {
    for (const Standbys::Copy& copy : following) {
      if (view_.in_sync.contains(copy.name) || copy.commits + kNearCommits < standbys_.furthest())
        continue;
      joining_ = copy.name;
      Require();
      joining_at_ = standbys_.furthest();  // Read after it is asked for what comes next.
      break;
    }
  }
  if (joining_.empty()) return;
  const auto found = find(joining_);
  if (found == following.end()) {
    joining_.clear();
    return Require();
  }
  if (found->commits < joining_at_) return;
  std::set<std::string> names = view_.in_sync;
  names.insert(joining_);
  if (!ChangeSet(names)) return;
  options_.events->Record("standby_in_sync",
                          absl::StrCat("standby ", joining_, " has everything: in sync are ",
                                       absl::StrJoin(names, ", ")),
                          {{"standby", joining_}, {"in_sync", names}});
  joining_.clear();
}

bool Leadership::ChangeSet(const std::set<std::string>& names) {
  const absl::StatusOr<bool> changed = registry_.ChangeSet(view_, names);
  if (!changed.ok()) {
    unknown_ = true;
    return false;
  }
  if (!*changed) {
    Lose("the registry has another leader, or another set");
    return false;
  }
  LookUp();
  return !unknown_ && !lost_ && view_.in_sync == names;
}

void Leadership::Settle() {
  LookUp();
  if (unknown_ || lost_) return;
  // A change without an answer may be on its way still. It names the set that it replaces: once
  // this one is written again, at a new revision, that change can no longer be made.
  const absl::StatusOr<bool> written = registry_.ChangeSet(view_, view_.in_sync);
  unknown_ = !written.ok() || !*written;
  if (!unknown_) LookUp();
}

void Leadership::LookUp() {
  const absl::StatusOr<RegistryView> seen = registry_.Read();
  unknown_ = !seen.ok();
  if (unknown_) return;
  if (seen->leader_revision != view_.leader_revision)
    return Lose("the registry has another leader");
  view_ = *seen;
  Require();
}

void Leadership::Require() {
  std::set<std::string> names = view_.in_sync;
  if (!joining_.empty()) names.insert(joining_);
  names.erase(options_.name);
  standbys_.Require(std::move(names), /*alone=*/view_.in_sync.size() <= 1);
}

void Leadership::Lose(const std::string& why) {
  lost_ = true;
  standbys_.Close(absl::UnavailableError(
      absl::StrCat("this coordinator leads no more: ", why, "; another one may lead")));
}

}  // namespace causeway::server
