#include "server/standby/standby_notes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace causeway::server {

StandbyNotes::View StandbyNotes::Get() const {
  absl::MutexLock lock(&mutex_);
  View view = view_;
  view.behind = std::max<int64_t>(0, coordinator_commits_ - view.commits);
  return view;
}

absl::Status StandbyNotes::Ready() const {
  const View view = Get();
  if (view.leads || !view.following) return absl::UnavailableError(view.doing);
  if (view.behind > kCommitsOnTheirWay) {
    return absl::UnavailableError(
        absl::StrCat(view.doing, ", and is ", view.behind, " commits behind"));
  }
  if (!view.in_sync.value_or(true)) {
    return absl::UnavailableError(absl::StrCat(view.doing, ", and is not in sync yet"));
  }
  return absl::OkStatus();
}

void StandbyNotes::Doing(std::string what) {
  absl::MutexLock lock(&mutex_);
  view_.doing = std::move(what);
}

void StandbyNotes::SetFollowing(bool following) {
  absl::MutexLock lock(&mutex_);
  view_.following = following;
}

void StandbyNotes::SetCommits(int64_t commits) {
  absl::MutexLock lock(&mutex_);
  view_.commits = commits;
}

void StandbyNotes::SetCoordinatorCommits(int64_t commits) {
  absl::MutexLock lock(&mutex_);
  coordinator_commits_ = commits;
}

void StandbyNotes::SetInSync(bool in_sync) {
  absl::MutexLock lock(&mutex_);
  view_.in_sync = in_sync;
}

void StandbyNotes::SetLeads() {
  absl::MutexLock lock(&mutex_);
  view_.leads = true;
  view_.following = false;
  view_.doing = "leads, and opens its folder to serve it";
}

}  // namespace causeway::server
