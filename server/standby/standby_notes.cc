#include "server/standby/standby_notes.h"

namespace causeway::server {

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
