#include "server/store/store.h"

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

}  // namespace causeway::server
