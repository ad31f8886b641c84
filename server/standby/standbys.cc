#include "server/standby/standbys.h"

#include "absl/strings/str_join.h"

namespace causeway::server {

int64_t Standbys::Attach(const std::string& name, int64_t commits) {
  absl::MutexLock lock(&mutex_);
  std::erase_if(streams_, [&](const auto& item) { return item.second.name == name; });
  streams_[++last_stream_] = {
      .name = name, .commits = commits, .heard = options_.clock->Monotonic()};
  commits_[name] = commits;  // A copy may have begun anew.
  most_ = std::max(most_, commits);
  NoteStep();
  return last_stream_;
}

std::string Standbys::AmongOthers(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  std::set<std::string> others;
  for (const auto& [stream, copy] : streams_) others.insert(copy.name);
  others.erase(name);
  if (by_names_ || others.empty()) return "";
  return absl::StrCat(
      "; so does ", absl::StrJoin(others, " and "),
      ", without etcd: what workers are told is on one of these copies at least, and "
      "only the one with the most commits may be served in place of this coordinator");
}

void Standbys::Acknowledge(int64_t stream, int64_t commits) {
  absl::MutexLock lock(&mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  found->second.commits = commits;
  found->second.heard = options_.clock->Monotonic();
  commits_[found->second.name] = commits;
  most_ = std::max(most_, commits);
  NoteStep();
}

void Standbys::Detach(int64_t stream) {
  absl::MutexLock lock(&mutex_);
  streams_.erase(stream);
  CloseIfDeserted();
}

void Standbys::Stop() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
  CloseIfDeserted();
}

void Standbys::CloseIfDeserted() {
  if (!stopping_ || !streams_.empty() || !closed_.ok()) return;
  if (by_names_ && required_.empty()) return;  // It needs none.
  closed_ = absl::UnavailableError("the coordinator stops, and no standby follows it");
}

std::vector<Standbys::Copy> Standbys::Following() const {
  absl::MutexLock lock(&mutex_);
  std::vector<Copy> copies;
  for (const auto& [stream, copy] : streams_) {
    Copy& told = copies.emplace_back(copy);
    told.in_sync = by_names_ ? !alone_ && required_.contains(copy.name) : IsNear(copy);
  }
  return copies;
}

bool Standbys::missing() const {
  absl::MutexLock lock(&mutex_);
  return said_;
}

void Standbys::Require(std::set<std::string> names, bool alone) {
  absl::MutexLock lock(&mutex_);
  alone_ = alone;
  if (by_names_ && required_ == names) return;  // Nobody's patience begins anew.
  by_names_ = true;
  required_ = std::move(names);
  NoteStep();
}

bool Standbys::IsNear(const Copy& copy) const {
  return copy.commits + kCommitsOnTheirWay >= std::max(waited_for_, begin_);
}

void Standbys::Begin(int64_t commits) {
  absl::MutexLock lock(&mutex_);
  begin_ = commits;
  waiting_since_ = options_.clock->Monotonic();
}

int64_t Standbys::CommitsOf(const std::string& name) const {
  const auto found = commits_.find(name);
  return found == commits_.end() ? 0 : found->second;
}

bool Standbys::Held(int64_t commits) const {
  if (!by_names_) return most_ >= commits;
  return std::ranges::all_of(required_, [&](const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                                            mutex_) { return CommitsOf(name) >= commits; });
}

void Standbys::NoteStep() { waiting_since_ = options_.clock->Monotonic(); }

int64_t Standbys::furthest() const {
  absl::MutexLock lock(&mutex_);
  return std::max(waited_for_, begin_);
}

absl::Status Standbys::WaitUntilHeld(int64_t commits) {
  absl::MutexLock lock(&mutex_);
  if (waiting_++ == 0) waiting_since_ = options_.clock->Monotonic();
  waited_for_ = std::max(waited_for_, commits);
  const auto held = [this, commits]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !closed_.ok() || Held(commits);
  };
  mutex_.Await(absl::Condition(&held));
  --waiting_;
  return Ended();
}

bool Standbys::IsHeld(int64_t commits) const {
  absl::MutexLock lock(&mutex_);
  return Held(commits);
}

absl::Status Standbys::MayTell() const {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(Ended());
  if (Held(begin_)) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the coordinator waits for a standby to have its ", begin_,
                   " commits: nothing is told before (--durability=replicated)"));
}

void Standbys::Close(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  if (closed_.ok()) closed_ = why;
}

absl::Status Standbys::closed() const {
  absl::MutexLock lock(&mutex_);
  return closed_;
}

absl::Status Standbys::Ended() const {
  RETURN_IF_ERROR(closed_);
  if (options_.clock->Monotonic() < lead_until_) return absl::OkStatus();
  return absl::UnavailableError("the lease of this coordinator may have ended: another may lead");
}

void Standbys::LeadUntil(absl::Duration end) {
  absl::MutexLock lock(&mutex_);
  lead_until_ = end;
}

std::set<std::string> Standbys::Late(absl::Duration patience) const {
  absl::MutexLock lock(&mutex_);
  std::set<std::string> late;
  if (!SomebodyWaits()) return late;
  const int64_t wanted = std::max(waited_for_, begin_);
  for (const std::string& name : required_) {
    if (CommitsOf(name) >= wanted) continue;
    absl::Duration since = waiting_since_;
    for (const auto& [stream, copy] : streams_) {
      if (copy.name == name) since = std::max(since, copy.heard);
    }
    if (options_.clock->Monotonic() - since >= patience) late.insert(name);
  }
  return late;
}

void Standbys::Tick() {
  absl::MutexLock lock(&mutex_);
  const bool waits = SomebodyWaits();
  if (!waits && said_) {
    said_ = false;
    options_.events->Record("standby_back", "copies have what is told again: the run goes on",
                            nlohmann::json::object());
  }
  if (!waits || said_ || options_.clock->Monotonic() - waiting_since_ < options_.patience) return;
  said_ = true;
  const int64_t commits = std::max(waited_for_, begin_);
  options_.events->Record(
      "standby_missing",
      absl::StrCat("everybody waits: no delta is acknowledged and no round published before ",
                   required_.empty() ? "a standby" : absl::StrJoin(required_, " and "),
                   " has commit ", commits, "; ", streams_.size(), " follow, the furthest has ",
                   most_, ". Start one: causeway-coordinator follow"),
      {{"commits", commits}, {"held", most_}, {"standbys", streams_.size()}});
}

absl::Status StandbyNotes::Ready() const {
  const View view = Get();
  if (view.leads || !view.following) return absl::UnavailableError(view.doing);
  if (view.behind() > kCommitsOnTheirWay) {
    return absl::UnavailableError(
        absl::StrCat(view.doing, ", and is ", view.behind(), " commits behind"));
  }
  if (!view.in_sync.value_or(true)) {
    return absl::UnavailableError(absl::StrCat(view.doing, ", and is not in sync yet"));
  }
  return absl::OkStatus();
}

void StandbyNotes::SetLeads() {
  absl::MutexLock lock(&mutex_);
  view_.leads = true;
  view_.following = false;
  view_.doing = "leads, and opens its folder to serve it";
}

}  // namespace causeway::server
