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
    versions_.Restore({TreeHash(std::span<const float>(initial))});
    BeginWith(std::move(initial));
  }
  Rest();
}

void FragmentRounds::BeginWith(FloatBuffer initial) {
  FragmentArrays::Set& set = arrays_.set();
  set.theta = FirstTheta(initial);
  set.optimizer.assign(options_.optimizer->state_names().size(), FloatBuffer(initial.size(), 0.0f));
  set.published = std::move(initial);
}

absl::Status FragmentRounds::Load() {
  if (!arrays_.at_rest()) return absl::OkStatus();
  const absl::Status loaded = options_.merge_pool->With(
      [&](ThreadPool* threads) ABSL_NO_THREAD_SAFETY_ANALYSIS { return arrays_.Load(threads); });
  if (loaded.ok()) return loaded;
  return absl::InternalError(
      absl::StrCat("fragment ", options_.fragment, " cannot be read where it was at rest (",
                   loaded.message(), "): start the coordinator again, it recovers from the store"));
}

void FragmentRounds::Rest() {
  absl::WriterMutexLock data_lock(&data_mutex_);
  if (options_.scratch == nullptr || arrays_.at_rest() || state_is_void_ || keeps_arrays_) return;
  {
    absl::MutexLock lock(&mutex_);
    if (!ledger_.contributions().empty()) return;  // They are needed soon.
  }
  PublishedNorm();  // Contributions are judged by it.
  const absl::Status rested = options_.merge_pool->With(
      [&](ThreadPool* threads) ABSL_NO_THREAD_SAFETY_ANALYSIS { return arrays_.Rest(threads); });
  if (rested.ok()) return;
  Log().warn("fragment {} stays in memory: {}", options_.fragment, std::string(rested.message()));
}

absl::Status FragmentRounds::CopyPublished(std::span<float> values) const {
  absl::ReaderMutexLock lock(&data_mutex_);
  return arrays_.CopyPublished(values);
}

absl::StatusOr<std::shared_ptr<const PullObject>> FragmentRounds::State() const {
  absl::ReaderMutexLock data_lock(&data_mutex_);
  auto object = std::make_shared<PullObject>();
  {
    absl::MutexLock lock(&mutex_);
    std::shared_ptr<const PullObject> former = state_object_.lock();
    if (former != nullptr && former->header.round() == versions_.newest()) return former;
    object->header.set_round(versions_.newest());
    // The object is the values' bytes, so its hash is theirs.
    object->header.set_object_hash(versions_.newest_hash());
    object->header.set_published_hash(versions_.newest_hash());
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
  const int64_t version = versions_.newest();
  if (state_is_void_ || version == snapshot_version()) return absl::OkStatus();
  FragmentArrays::Set at_rest;
  if (arrays_.at_rest()) {
    ASSIGN_OR_RETURN(at_rest, arrays_.Copy());
  }
  const FragmentArrays::Set& arrays = arrays_.at_rest() ? at_rest : arrays_.set();
  FragmentView view;
  view.fragment = options_.fragment;
  view.version = version;
  view.published_hash = versions_.newest_hash();
  view.theta = arrays.theta;
  view.published = arrays.published;
  for (size_t i = 0; i < arrays.optimizer.size(); ++i) {
    view.optimizer.push_back({options_.optimizer->state_names()[i], arrays.optimizer[i]});
  }
  RETURN_IF_ERROR(options_.store->SaveSnapshot(view));
  absl::MutexLock lock(&mutex_);
  older_snapshot_ = std::exchange(snapshot_version_, version);
  return absl::OkStatus();
}

int64_t FragmentRounds::snapshot_version() const {
  absl::MutexLock lock(&mutex_);
  return snapshot_version_;
}

absl::Status FragmentRounds::ForgetAnswers(int64_t before_round) {
  return versions_.ForgetAnswers(before_round);
}

}  // namespace causeway::server
