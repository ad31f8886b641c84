#include "server/transfer/answer_outbox.h"

#include "common/transfer/wire.h"

namespace causeway::server {
namespace {

// A bit for each chunk of the largest object.
constexpr size_t kMaxHeldBytes = static_cast<size_t>(kMaxObjectBytes) / kChunkBytes / 8;

bool HoldsChunks(const v1::Want& want) {
  return want.held_chunks().find_first_not_of('\0') != std::string::npos;
}

}  // namespace

absl::Status AnswerOutbox::Check(const v1::Want& want) {
  if (want.object() != v1::Want::ANSWER && want.object() != v1::Want::STATE) {
    return absl::InvalidArgumentError("object must be ANSWER or STATE");
  }
  if (want.held_chunks().size() > kMaxHeldBytes) {
    return absl::InvalidArgumentError(absl::StrCat("held_chunks has ", want.held_chunks().size(),
                                                   " bytes; at most ", kMaxHeldBytes));
  }
  return absl::OkStatus();
}

void AnswerOutbox::Want(const std::string& worker_id, const v1::Want& want,
                        std::weak_ptr<const void> waits, Deliver deliver) {
  const absl::Status status = Check(want);
  if (!status.ok()) return deliver(status);
  const auto outbox = weak_from_this();
  // Both may read or copy a whole object, and so wait for what the worker has asked for before.
  if (want.object() == v1::Want::STATE) {
    reads_->Run(worker_id,
                [outbox, worker_id, want, waits = std::move(waits), deliver = std::move(deliver)] {
                  const std::shared_ptr<AnswerOutbox> self = outbox.lock();
                  if (self == nullptr || waits.expired()) return;
                  deliver(self->Take(worker_id, want, self->ReadState(worker_id, want.fragment())));
                });
    return;
  }
  const Answer answer = {.worker = worker_id, .fragment = want.fragment(), .round = want.round()};
  {
    absl::MutexLock lock(&mutex_);
    const auto [waiting, is_new] = waiting_.try_emplace(answer);
    std::erase_if(waiting->second, [](const Waiting& one) { return one.waits.expired(); });
    waiting->second.push_back({want, std::move(waits), std::move(deliver)});
    if (!is_new) return;
  }
  reads_->Run(worker_id, [outbox, &coordinator = coordinator_, answer] {
    const std::shared_ptr<AnswerOutbox> here = outbox.lock();
    if (here == nullptr) return;
    absl::Status room;
    {
      absl::MutexLock lock(&here->mutex_);
      room = here->CheckRoom(answer.worker, 1);  // How large it is, is not known before.
    }
    if (!room.ok()) return here->Answered(answer, room);
    // Holds nothing of who waits: they may go before the round is published.
    coordinator.rounds().PullAnswer(answer.fragment, answer.round,
                                    [outbox, answer](const Object& object) {
                                      const std::shared_ptr<AnswerOutbox> self = outbox.lock();
                                      if (self != nullptr) self->Answered(answer, object);
                                    });
  });
}

AnswerOutbox::Object AnswerOutbox::ReadState(const std::string& worker_id, int fragment) {
  const FragmentPlan& plan = coordinator_.plan();
  // Otherwise there is none to read.
  if (fragment >= 0 && fragment < plan.fragments()) {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(CheckRoom(worker_id, plan.range(fragment).size() * int64_t{sizeof(float)}));
  }
  return coordinator_.rounds().PullState(fragment);
}

absl::Status AnswerOutbox::CheckRoom(const std::string& worker_id, int64_t bytes) {
  const auto found = held_.find(worker_id);
  const int64_t held = found == held_.end() ? 0 : found->second.bytes;
  if (bytes <= options_.max_bytes_of_worker - held) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the worker pulls objects of ", held, " bytes already; with ", bytes,
                   " more they would be above ", options_.max_bytes_of_worker,
                   ": try again when one of them is whole"));
}

void AnswerOutbox::Answered(const Answer& answer, const Object& object) {
  std::vector<Waiting> all;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = waiting_.find(answer);
    if (found == waiting_.end()) return;
    all = std::move(found->second);
    waiting_.erase(found);
  }
  for (const Waiting& one : all) {
    if (!one.waits.expired()) one.deliver(Take(answer.worker, one.want, object));
  }
}

absl::StatusOr<AnswerOutbox::Found> AnswerOutbox::Take(const std::string& worker_id,
                                                       const v1::Want& want, const Object& object) {
  RETURN_IF_ERROR(object.status());
  const v1::PullHeader& header = (*object)->header;
  // Chunks that are held are of one version, 0 included: those of another never join them.
  const bool names_version = want.round() != 0 || HoldsChunks(want);
  if (want.object() == v1::Want::STATE && names_version && want.round() != header.round()) {
    return absl::NotFoundError(absl::StrCat("version ", want.round(), " of fragment ",
                                            want.fragment(), " is no longer kept, version ",
                                            header.round(), " is: pull it from the start"));
  }
  Found found;
  found.header = header;
  absl::MutexLock lock(&mutex_);
  const auto known = held_.find(worker_id);
  if (known == held_.end() || !known->second.objects.contains(object->get())) {
    const auto bytes = static_cast<int64_t>((*object)->bytes.size());
    RETURN_IF_ERROR(CheckRoom(worker_id, bytes));
    held_[worker_id].bytes += bytes;
  }
  held_[worker_id].objects.insert(object->get());
  found.hold =
      std::shared_ptr<const void>(nullptr, [self = shared_from_this(), worker_id, kept = *object](
                                               const void*) { self->LetGo(worker_id, *kept); });
  found.source = SourceOf(*object);
  return found;
}

void AnswerOutbox::LetGo(const std::string& worker_id, const PullObject& object) {
  absl::MutexLock lock(&mutex_);
  Held& held = held_[worker_id];
  held.objects.erase(held.objects.find(&object));
  if (!held.objects.contains(&object)) held.bytes -= static_cast<int64_t>(object.bytes.size());
  if (held.objects.empty()) held_.erase(worker_id);
}

std::shared_ptr<ChunkSource> AnswerOutbox::SourceOf(
    const std::shared_ptr<const PullObject>& object) {
  std::erase_if(sources_, [](const auto& item) { return item.second.expired(); });
  std::weak_ptr<ChunkSource>& known = sources_[object.get()];
  std::shared_ptr<ChunkSource> source = known.lock();
  if (source == nullptr) {
    source = std::make_shared<ChunkSource>(
        ChunkSource::Options{.bytes = object->bytes,
                             .leaves = object->leaves,
                             .owner = object,
                             .pack = coordinator_.config().sync().entropy_down(),
                             .cache = options_.cache});
    known = source;
  }
  return source;
}

size_t AnswerOutbox::waiting_answers() const {
  absl::MutexLock lock(&mutex_);
  return waiting_.size();
}

}  // namespace causeway::server
