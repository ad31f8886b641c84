// A fragment's arrays: how they begin, rest, come back, are pulled and are saved.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"
#include "server/core/fragment_rounds.h"

namespace causeway::server {

void FragmentRounds::Begin(FloatBuffer initial) {
  {
    absl::WriterMutexLock data_lock(&data_mutex_);
    absl::MutexLock lock(&mutex_);
    published_hashes_ = {TreeHash(std::span<const float>(initial))};
    BeginWith(std::move(initial));
  }
  Rest();
}

void FragmentRounds::BeginWith(FloatBuffer initial) {
  FragmentArrays::Set& set = arrays_.set();
  set.theta = options_.region() ? FloatBuffer(initial.size(), 0.0F) : initial;
  set.optimizer.assign(options_.optimizer->state_names().size(), FloatBuffer(initial.size(), 0.0f));
  set.published = std::move(initial);
}

absl::Status FragmentRounds::Load() {
  if (!arrays_.at_rest()) return absl::OkStatus();
  absl::Status loaded;
  if (options_.merge_pool->threads == nullptr) {
    loaded = arrays_.Load(nullptr);
  } else {
    absl::MutexLock pool_lock(&options_.merge_pool->mutex);
    loaded = arrays_.Load(options_.merge_pool->threads);
  }
  if (loaded.ok()) return loaded;
  return absl::InternalError(
      absl::StrCat("fragment ", options_.fragment, " cannot be read where it was at rest (",
                   loaded.message(), "): start the coordinator again, it recovers from the store"));
}

void FragmentRounds::Rest() {
  absl::WriterMutexLock data_lock(&data_mutex_);
  if (options_.scratch == nullptr || arrays_.at_rest() || state_is_void_ ||
      at_parent_.has_value()) {
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    if (!contributions_.empty()) return;  // They are needed soon.
  }
  PublishedNorm();  // Contributions are judged by it.
  absl::Status rested;
  if (options_.merge_pool->threads == nullptr) {
    rested = arrays_.Rest(nullptr);
  } else {
    absl::MutexLock pool_lock(&options_.merge_pool->mutex);
    rested = arrays_.Rest(options_.merge_pool->threads);
  }
  if (rested.ok()) return;
  Log().warn("fragment {} stays in memory: {}", options_.fragment, std::string(rested.message()));
}

FragmentView FragmentRounds::View(const FragmentArrays::Set& arrays) const {
  FragmentView view;
  view.fragment = options_.fragment;
  view.theta = arrays.theta;
  view.published = arrays.published;
  {
    absl::MutexLock lock(&mutex_);
    view.version = static_cast<int64_t>(published_hashes_.size()) - 1;
    view.published_hash = published_hashes_.back();
  }
  for (size_t i = 0; i < arrays.optimizer.size(); ++i) {
    view.optimizer.push_back({options_.optimizer->state_names()[i], arrays.optimizer[i]});
  }
  return view;
}

absl::StatusOr<std::shared_ptr<const PullObject>> FragmentRounds::State() const {
  absl::ReaderMutexLock data_lock(&data_mutex_);
  auto object = std::make_shared<PullObject>();
  {
    absl::MutexLock lock(&mutex_);
    const auto version = static_cast<int64_t>(published_hashes_.size()) - 1;
    std::shared_ptr<const PullObject> former = state_object_.lock();
    if (former != nullptr && former->header.round() == version) return former;
    object->header.set_round(version);
    // The object is the values' bytes, so its hash is theirs.
    object->header.set_object_hash(published_hashes_.back());
    object->header.set_published_hash(published_hashes_.back());
  }
  const auto values = static_cast<size_t>(options_.range.size());
  object->bytes.resize(values * sizeof(float));
  RETURN_IF_ERROR(arrays_.CopyPublished({reinterpret_cast<float*>(object->bytes.data()), values}));
  object->header.set_fragment(options_.fragment);
  object->header.set_codec(v1::FP32);
  object->header.set_total_bytes(static_cast<int64_t>(object->bytes.size()));
  absl::MutexLock lock(&mutex_);
  state_object_ = object;
  return object;
}

absl::Status FragmentRounds::SaveSnapshot() {
  absl::ReaderMutexLock data_lock(&data_mutex_);
  if (state_is_void_) return absl::OkStatus();
  {
    absl::MutexLock lock(&mutex_);
    if (std::ssize(published_hashes_) - 1 == snapshot_version_) return absl::OkStatus();
  }
  FragmentArrays::Set at_rest;
  if (arrays_.at_rest()) {
    ASSIGN_OR_RETURN(at_rest, arrays_.Copy());
  }
  const FragmentView view = View(arrays_.at_rest() ? at_rest : arrays_.set());
  RETURN_IF_ERROR(options_.store->SaveSnapshot(view));
  absl::MutexLock lock(&mutex_);
  older_snapshot_ = std::exchange(snapshot_version_, view.version);
  return absl::OkStatus();
}

}  // namespace causeway::server
