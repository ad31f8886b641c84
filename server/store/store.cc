#include "server/store/store.h"

#include "common/base/status_macros.h"

namespace causeway::server {

FragmentSnapshot CopyFragment(const FragmentView& view) {
  FragmentSnapshot copy;
  copy.fragment = view.fragment;
  copy.version = view.version;
  copy.published_hash = view.published_hash;
  copy.theta.assign(view.theta.begin(), view.theta.end());
  copy.published.assign(view.published.begin(), view.published.end());
  for (const NamedArray& array : view.optimizer) {
    copy.optimizer.emplace_back(array.name, FloatBuffer(array.values.begin(), array.values.end()));
  }
  return copy;
}

absl::Status Store::SaveMembers(std::span<const MemberRecord> members) {
  for (const MemberRecord& member : members) RETURN_IF_ERROR(SaveMember(member));
  return absl::OkStatus();
}

}  // namespace causeway::server
