#include "server/core/versions.h"

#include "common/base/checksum.h"
#include "common/telemetry/log.h"

namespace causeway::server {
namespace {

// RecentAnswers keeps so many of any size, and more up to so many bytes.
constexpr size_t kFewestAnswers = 2;
constexpr size_t kAnswerBytes = size_t{128} << 20;

}  // namespace

void RecentAnswers::Keep(std::shared_ptr<const PullObject> answer) {
  std::vector<std::shared_ptr<const PullObject>> former;  // Freed without the lock.
  absl::MutexLock lock(&mutex_);
  bytes_ += answer->bytes.size();
  kept_.push_back(std::move(answer));
  while (kept_.size() > kFewestAnswers && bytes_ > kAnswerBytes) {
    bytes_ -= kept_.front()->bytes.size();
    former.push_back(std::move(kept_.front()));
    kept_.pop_front();
  }
}

void Versions::Restore(std::vector<uint64_t> hashes) {
  absl::MutexLock lock(&mutex_);
  hashes_ = std::move(hashes);
}

int64_t Versions::newest() const {
  absl::MutexLock lock(&mutex_);
  return std::ssize(hashes_) - 1;
}

absl::StatusOr<uint64_t> Versions::Hash(int64_t version) const {
  absl::MutexLock lock(&mutex_);
  if (version < 0 || version >= std::ssize(hashes_)) {
    return absl::OutOfRangeError(absl::StrCat("version ", version, " of fragment ", fragment_,
                                              " is not published; version ", hashes_.size() - 1,
                                              " is"));
  }
  return hashes_[static_cast<size_t>(version)];
}

std::pair<std::shared_ptr<const PullObject>, std::vector<PullCallback>> Versions::Publish(
    const v1::Round& record, ByteBuffer bytes, std::vector<uint64_t> leaves) {
  std::shared_ptr<const PullObject> answer =
      MakeAnswer(record, std::move(bytes), std::move(leaves));
  if (recent_ != nullptr) recent_->Keep(answer);
  absl::MutexLock lock(&mutex_);
  hashes_.push_back(record.published_hash());
  std::erase_if(answers_, [](const auto& one) { return one.second.expired(); });
  answers_[record.round()] = answer;
  return {std::move(answer), std::exchange(waiters_, {})};
}

std::shared_ptr<PullObject> Versions::MakeAnswer(const v1::Round& record, ByteBuffer bytes,
                                                 std::vector<uint64_t> leaves) const {
  auto answer = std::make_shared<PullObject>();
  answer->header.set_fragment(fragment_);
  answer->header.set_round(record.round());
  answer->header.set_codec(codec_);
  answer->header.set_total_bytes(static_cast<int64_t>(bytes.size()));
  answer->header.set_object_hash(record.answer_hash());
  answer->header.set_published_hash(record.published_hash());
  answer->bytes = std::move(bytes);
  answer->leaves = std::move(leaves);
  return answer;
}

absl::StatusOr<std::shared_ptr<const PullObject>> Versions::AnswerOrWait(int64_t round,
                                                                         PullCallback& callback) {
  v1::Round record;
  {
    absl::MutexLock lock(&mutex_);
    const int64_t open = std::ssize(hashes_);
    if (round < 1 || round > open) {
      return absl::FailedPreconditionError(absl::StrCat("there is no answer of round ", round,
                                                        " of fragment ", fragment_,
                                                        " to wait for: round ", open, " is open"));
    }
    if (round == open) {
      waiters_.push_back(std::move(callback));
      return nullptr;
    }
    if (round < first_answer_) {
      return absl::NotFoundError(absl::StrCat("the answer of round ", round, " of fragment ",
                                              fragment_, " is no longer kept (version ", open - 1,
                                              " is published): fetch the STATE"));
    }
    if (const auto held = answers_.find(round); held != answers_.end()) {
      if (std::shared_ptr<const PullObject> answer = held->second.lock()) return answer;
    }
    record.set_round(round);
    record.set_published_hash(hashes_[static_cast<size_t>(round)]);
  }
  const absl::StatusOr<std::vector<uint8_t>> bytes = store_.ReadAnswer(fragment_, round);
  if (!bytes.ok()) {
    // Whoever asks can go on without this answer; whoever runs the disk should know.
    Log().error("the answer of round {} of fragment {} cannot be read: {}", round, fragment_,
                std::string(bytes.status().message()));
    return absl::NotFoundError(absl::StrCat("the answer of round ", round, " of fragment ",
                                            fragment_,
                                            " cannot be read any more: fetch the STATE"));
  }
  std::vector<uint64_t> leaves = LeafChecksums(*bytes);
  record.set_answer_hash(TreeRoot(leaves));
  std::shared_ptr<const PullObject> answer =
      MakeAnswer(record, ByteBuffer(bytes->begin(), bytes->end()), std::move(leaves));
  absl::MutexLock lock(&mutex_);
  answers_[round] = answer;  // For others who want it meanwhile.
  return answer;
}

std::vector<PullCallback> Versions::TakeWaiters() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(waiters_, {});
}

absl::Status Versions::ForgetAnswers(int64_t before_round) {
  {
    absl::MutexLock lock(&mutex_);
    if (before_round <= first_answer_) return absl::OkStatus();
    first_answer_ = before_round;
    answers_.erase(answers_.begin(), answers_.lower_bound(before_round));
  }
  return store_.ForgetAnswers(fragment_, before_round);
}

}  // namespace causeway::server
