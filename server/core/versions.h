// The published versions of a fragment: their hashes, and the answers that lead from each to the
// next, which workers pull.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/exchange.pb.h"
#include "common/base/byte_buffer.h"
#include "server/store/store.h"

namespace causeway::server {

// An encoded fragment, ready to be pulled. Immutable.
struct PullObject {
  v1::PullHeader header;
  ByteBuffer bytes;
  // The checksums of the leaves that object_hash is made of, where they are known; or empty.
  std::vector<uint64_t> leaves;
};

// Called once: with the object, or with the reason why it never comes.
using PullCallback = std::function<void(absl::StatusOr<std::shared_ptr<const PullObject>>)>;

// The answers of all fragments that are pulled now: the newest two, and more while these are small.
class RecentAnswers {
 public:
  void Keep(std::shared_ptr<const PullObject> answer);

 private:
  absl::Mutex mutex_;
  std::deque<std::shared_ptr<const PullObject>> kept_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Thread-safe.
class Versions {
 public:
  // `recent` may be null. What is pointed to outlives the object.
  Versions(int fragment, v1::Codec codec, Store* store, RecentAnswers* recent)
      : fragment_(fragment), codec_(codec), store_(*store), recent_(recent) {}

  // The hashes of all versions, from 0. Comes before anything else.
  void Restore(std::vector<uint64_t> hashes);
  int64_t newest() const;
  // OUT_OF_RANGE for a version that is not published.
  absl::StatusOr<uint64_t> Hash(int64_t version) const;
  uint64_t newest_hash() const { return Hash(newest()).value(); }

  // The round, which is stored, becomes the newest version. Returns its answer, and who waits.
  std::pair<std::shared_ptr<const PullObject>, std::vector<PullCallback>> Publish(
      const v1::Round& record, ByteBuffer answer, std::vector<uint64_t> leaves);
  // The answer, or null after keeping the callback until the round is published.
  absl::StatusOr<std::shared_ptr<const PullObject>> AnswerOrWait(int64_t round,
                                                                 PullCallback& callback);
  // No answer comes any more: returns who waited.
  std::vector<PullCallback> TakeWaiters();
  // Answers of earlier rounds will not be asked for any more.
  absl::Status ForgetAnswers(int64_t before_round);

 private:
  std::shared_ptr<PullObject> MakeAnswer(const v1::Round& record, ByteBuffer bytes,
                                         std::vector<uint64_t> leaves) const;

  const int fragment_;
  const v1::Codec codec_;
  Store& store_;
  RecentAnswers* const recent_;
  mutable absl::Mutex mutex_;
  std::vector<uint64_t> hashes_ ABSL_GUARDED_BY(mutex_);
  // By round, those that somebody holds; the store has all that are kept.
  std::map<int64_t, std::weak_ptr<const PullObject>> answers_ ABSL_GUARDED_BY(mutex_);
  int64_t first_answer_ ABSL_GUARDED_BY(mutex_) = 1;  // Earlier ones are forgotten.
  std::vector<PullCallback> waiters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server
