#include "server/service/pull_table.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/wire.h"
#include "common/telemetry/log.h"

namespace causeway::server {
namespace {

constexpr size_t kMaxWorkerIdBytes = 64;
constexpr absl::Duration kLookAtStreams = absl::Seconds(1);
// A bit for each chunk of the largest object.
constexpr size_t kMaxHeldBytes = static_cast<size_t>(kMaxObjectBytes) / kChunkBytes / 8;

}  // namespace

struct PullTable::Group {
  v1::PullRequest request;  // The first stream's.
  std::set<PullStream*> streams;
  enum class State { kWaiting, kServing, kDone } state = State::kWaiting;
  // From kServing on.
  v1::PullHeader header;
  std::shared_ptr<PullSource> source;  // Null when done.
  // Until the last stream has ended: its chunks may still be on their way.
  std::shared_ptr<const PullObject> held;
  ChunkSet dealt;
  absl::Duration moved = absl::ZeroDuration();  // A chunk of it left; when done: since then.

  GroupKey key() const { return {request.worker_id(), request.stripe_group()}; }
  Wanted wanted() const { return {request.worker_id(), request.fragment(), request.round()}; }
  bool IsOf(const v1::PullRequest& other) const {
    return request.object() == other.object() && request.fragment() == other.fragment() &&
           request.round() == other.round();
  }
};

void PullTable::Do(Actions actions) {
  for (const auto& action : actions) action();
}

absl::Status PullTable::Check(const v1::PullRequest& request) const {
  RETURN_IF_ERROR(CheckRunId("pull", request.run_id(), coordinator_.run_id()));
  if (request.object() != v1::PullRequest::ANSWER && request.object() != v1::PullRequest::STATE) {
    return absl::InvalidArgumentError("object must be ANSWER or STATE");
  }
  // Both are kept as long as the pull waits.
  if (request.worker_id().size() > kMaxWorkerIdBytes) {
    return absl::InvalidArgumentError(absl::StrCat("worker_id has ", request.worker_id().size(),
                                                   " bytes; at most ", kMaxWorkerIdBytes));
  }
  if (request.held_chunks().size() > kMaxHeldBytes) {
    return absl::InvalidArgumentError(absl::StrCat("held_chunks has ", request.held_chunks().size(),
                                                   " bytes; at most ", kMaxHeldBytes));
  }
  if (request.max_bytes_per_second() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("max_bytes_per_second must not be negative, it ",
                                                   "is ", request.max_bytes_per_second()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<PullTable::Group>> PullTable::FindGroup(
    const v1::PullRequest& request) {
  if (streams_.size() >= options_.max_streams) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the coordinator sends over ", options_.max_streams, " streams already; try again later"));
  }
  const auto downlink = downlinks_.find(request.worker_id());
  if (downlink != downlinks_.end() && downlink->second.streams >= options_.max_streams_of_worker) {
    return absl::ResourceExhaustedError(absl::StrCat("the worker pulls over ",
                                                     options_.max_streams_of_worker,
                                                     " streams already; try again later"));
  }
  auto group = std::make_shared<Group>();
  group->request = request;
  if (request.stripe_group() == 0) return group;
  const auto [found, is_new] = groups_.emplace(group->key(), group);
  if (!is_new && !found->second->IsOf(request)) {
    return absl::InvalidArgumentError(
        "the streams of a stripe_group must ask for the same object of the same round");
  }
  return found->second;
}

void PullTable::BoundBytesOfWorker(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  max_bytes_of_worker_ = bytes;
}

void PullTable::Open(const v1::PullRequest& request, std::shared_ptr<PullStream> stream) {
  const absl::Status status = Check(request);
  if (!status.ok()) return stream->End(status);
  Actions actions;
  {
    absl::MutexLock lock(&mutex_);
    const auto group = FindGroup(request);
    if (!group.ok()) {
      actions.push_back([stream, problem = group.status()] { stream->End(problem); });
    } else {
      const absl::Duration now = options_.clock->Monotonic();
      PullStream* const raw = stream.get();
      streams_[raw] = {.stream = std::move(stream), .group = *group, .since = now};
      Downlink& downlink = downlinks_[request.worker_id()];
      ++downlink.streams;
      downlink.rate.Set(request.max_bytes_per_second());
      const bool first = (*group)->streams.empty();
      (*group)->streams.insert(raw);
      if ((*group)->state != Group::State::kWaiting) {
        SendHeader(raw, actions);
      } else if (first) {
        Fetch(*group, actions);
      }
    }
  }
  Do(std::move(actions));
}

void PullTable::Fetch(const std::shared_ptr<Group>& group, Actions& actions) {
  // Both may read or copy a whole object, and so wait for what the worker has asked for before.
  if (group->request.object() == v1::PullRequest::STATE) {
    actions.push_back([table = weak_from_this(), &coordinator = coordinator_, reads = reads_,
                       worker = group->request.worker_id(), weak = std::weak_ptr<Group>(group)] {
      reads->Run(worker, [table, &coordinator, weak, worker] {
        const std::shared_ptr<PullTable> self = table.lock();
        const std::shared_ptr<Group> wanted = weak.lock();
        if (self == nullptr || wanted == nullptr) return;  // Nobody waits any more.
        const int fragment = wanted->request.fragment();
        const absl::Status room = self->CheckRoom(worker, self->StateBytes(fragment));
        const Object object = room.ok() ? coordinator.PullState(fragment) : Object(room);
        Actions begin;
        {
          absl::MutexLock lock(&self->mutex_);
          self->Begin(wanted, object, begin);
        }
        Do(std::move(begin));
      });
    });
    return;
  }
  const Wanted wanted = group->wanted();
  const auto [waiting, is_new] = waiting_.try_emplace(wanted);
  waiting->second.insert(group);
  if (!is_new) return;
  actions.push_back([table = weak_from_this(), &coordinator = coordinator_, reads = reads_,
                     wanted] {
    reads->Run(wanted.worker, [table, &coordinator, wanted] {
      const std::shared_ptr<PullTable> here = table.lock();
      if (here == nullptr) return;
      // How large it is, is not known before.
      const absl::Status room = here->CheckRoom(wanted.worker, 1);
      if (!room.ok()) return here->Answered(wanted, room);
      // Holds nothing of who waits: they may go before the round is published.
      coordinator.PullAnswer(wanted.fragment, wanted.round, [table, wanted](const Object& object) {
        const std::shared_ptr<PullTable> self = table.lock();
        if (self != nullptr) self->Answered(wanted, object);
      });
    });
  });
}

int64_t PullTable::StateBytes(int fragment) const {
  const FragmentPlan& plan = coordinator_.plan();
  if (fragment < 0 || fragment >= plan.fragments()) return 0;  // There is none to read.
  return plan.range(fragment).size() * int64_t{sizeof(float)};
}

absl::Status PullTable::CheckRoom(const std::string& worker, int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  const auto downlink = downlinks_.find(worker);
  return downlink == downlinks_.end() ? absl::OkStatus() : CheckRoomLocked(downlink->second, bytes);
}

absl::Status PullTable::CheckRoomLocked(const Downlink& downlink, int64_t bytes) const {
  if (bytes <= max_bytes_of_worker_ - downlink.held_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the worker pulls objects of ", downlink.held_bytes, " bytes already; with ", bytes,
      " more they would be above ", max_bytes_of_worker_, ": try again when one of them is whole"));
}

void PullTable::Answered(const Wanted& wanted, const Object& object) {
  Actions actions;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = waiting_.find(wanted);
    if (found == waiting_.end()) return;
    const auto groups = std::move(found->second);
    waiting_.erase(found);
    for (const auto& group : groups) Begin(group, object, actions);
  }
  Do(std::move(actions));
}

absl::Status PullTable::TakeObject(Group& group, const Object& object) {
  RETURN_IF_ERROR(object.status());
  const v1::PullHeader& header = (*object)->header;
  const v1::PullRequest& request = group.request;
  if (request.object() == v1::PullRequest::STATE && request.round() != 0 &&
      request.round() != header.round()) {
    return absl::NotFoundError(absl::StrCat("version ", request.round(), " of fragment ",
                                            request.fragment(), " is no longer kept, version ",
                                            header.round(), " is: pull it from the start"));
  }
  ASSIGN_OR_RETURN(group.dealt, ChunkSet::FromWire(header.total_bytes(), request.held_chunks()));
  RETURN_IF_ERROR(Hold(group, *object));
  group.request.clear_held_chunks();
  group.header = header;
  group.source = SourceOf(*object);
  return absl::OkStatus();
}

absl::Status PullTable::Hold(Group& group, const std::shared_ptr<const PullObject>& object) {
  Downlink& downlink = downlinks_[group.request.worker_id()];
  if (!downlink.held.contains(object)) {
    const auto bytes = static_cast<int64_t>(object->bytes.size());
    RETURN_IF_ERROR(CheckRoomLocked(downlink, bytes));
    downlink.held_bytes += bytes;
  }
  downlink.held.insert(object);
  group.held = object;
  return absl::OkStatus();
}

std::shared_ptr<const PullObject> PullTable::LetGo(Group& group) {
  std::shared_ptr<const PullObject> object = std::exchange(group.held, nullptr);
  if (object == nullptr) return object;
  Downlink& downlink = downlinks_[group.request.worker_id()];
  downlink.held.erase(downlink.held.find(object));
  if (!downlink.held.contains(object)) {
    downlink.held_bytes -= static_cast<int64_t>(object->bytes.size());
  }
  return object;
}

std::shared_ptr<PullSource> PullTable::SourceOf(const std::shared_ptr<const PullObject>& object) {
  std::erase_if(sources_, [](const auto& item) { return item.second.expired(); });
  std::weak_ptr<PullSource>& known = sources_[object.get()];
  std::shared_ptr<PullSource> source = known.lock();
  if (source == nullptr) {
    source = std::make_shared<PullSource>(object, coordinator_.config().sync().entropy_down(),
                                          *options_.cache);
    known = source;
  }
  return source;
}

void PullTable::Begin(const std::shared_ptr<Group>& group, const Object& object, Actions& actions) {
  if (group->state != Group::State::kWaiting || group->streams.empty()) return;
  const absl::Status status = TakeObject(*group, object);
  if (!status.ok()) {
    Forget(group);
    for (PullStream* const stream : group->streams) End(stream, status, actions);
    return;
  }
  group->state = Group::State::kServing;
  group->moved = options_.clock->Monotonic();
  downlinks_[group->request.worker_id()].serving.insert(group);
  for (PullStream* const stream : group->streams) SendHeader(stream, actions);
}

void PullTable::SendHeader(PullStream* stream, Actions& actions) {
  Entry& entry = streams_[stream];
  entry.state = Entry::State::kSending;
  entry.since = options_.clock->Monotonic();
  actions.push_back([to = entry.stream, header = entry.group->header] { to->SendHeader(header); });
}

void PullTable::End(PullStream* stream, const absl::Status& status, Actions& actions) {
  Entry& entry = streams_[stream];
  if (entry.state == Entry::State::kEnding) return;
  entry.state = Entry::State::kEnding;
  actions.push_back([to = entry.stream, status] { to->End(status); });
}

void PullTable::Sent(PullStream* stream) {
  Actions actions;
  const absl::Duration now = options_.clock->Monotonic();
  {
    absl::MutexLock lock(&mutex_);
    const auto found = streams_.find(stream);
    if (found == streams_.end() || found->second.state != Entry::State::kSending) return;
    Entry& entry = found->second;
    const v1::PullRequest& request = entry.group->request;
    Downlink& downlink = downlinks_[request.worker_id()];
    downlink.moved = now;
    entry.state = Entry::State::kReady;
    downlink.ready.push_back(stream);
    if (const int64_t bytes = std::exchange(entry.bytes, 0); bytes > 0) {
      if (entry.group->state == Group::State::kServing) entry.group->moved = now;
      actions.push_back([this, worker = request.worker_id(), object = request.object(), bytes] {
        coordinator_.RecordPulled(worker, object, bytes);
      });
    }
    Deal(request.worker_id(), actions);
  }
  Do(std::move(actions));
}

int64_t PullTable::UrgentStep(const Downlink& downlink) const {
  const absl::Duration now = options_.clock->Monotonic();
  int64_t urgent = std::numeric_limits<int64_t>::max();
  for (const auto& group : downlink.serving) {
    if (now - group->moved > options_.patience) continue;
    urgent = std::min(urgent, group->request.due_step());
  }
  return urgent;
}

void PullTable::EndDone(Downlink& downlink, Actions& actions) {
  std::erase_if(downlink.ready, [&](PullStream* stream) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (streams_[stream].group->state != Group::State::kDone) return false;
    End(stream, absl::OkStatus(), actions);
    return true;
  });
}

void PullTable::Deal(const std::string& worker, Actions& actions) {
  Downlink& downlink = downlinks_[worker];
  for (;;) {
    EndDone(downlink, actions);
    if (downlink.ready.empty()) return;
    const auto step = [this](PullStream* stream) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return streams_[stream].group->request.due_step();
    };
    // Of those due at the same step, the one that has waited longest.
    const auto next = std::ranges::min_element(downlink.ready, {}, step);
    if (step(*next) > UrgentStep(downlink)) return;
    if (!downlink.rate.Allows(options_.clock->Monotonic())) return;
    PullStream* const stream = *next;
    downlink.ready.erase(next);
    DealChunk(stream, downlink, actions);
  }
}

void PullTable::DealChunk(PullStream* stream, Downlink& downlink, Actions& actions) {
  Entry& entry = streams_[stream];
  const std::shared_ptr<Group> group = entry.group;
  const int64_t chunk = group->dealt.FirstMissing();
  const std::shared_ptr<PullSource> source = group->source;
  if (chunk < group->dealt.chunks()) {
    group->dealt.Add(chunk);
    entry.state = Entry::State::kSending;
    entry.since = options_.clock->Monotonic();
    entry.bytes = group->dealt.Size(chunk);
    downlink.rate.Take(entry.bytes);
    auto send = [this, to = entry.stream, source, chunk] {
      const OutgoingChunk outgoing = source->Chunk(chunk);
      {
        absl::MutexLock lock(&mutex_);
        const auto found = streams_.find(to.get());
        if (found == streams_.end()) return;  // It broke meanwhile.
        Entry& sender = found->second;
        const auto bytes = static_cast<int64_t>(outgoing.data.size());
        downlinks_[sender.group->request.worker_id()].rate.Take(bytes - sender.bytes);
        sender.bytes = bytes;
      }
      to->SendChunk(outgoing);
    };
    if (source->packs()) {
      actions.push_back([run = options_.run_long, self = shared_from_this(),
                         send = std::move(send)] { run([self, send] { send(); }); });
    } else {
      actions.push_back(std::move(send));
    }
  } else {
    downlink.ready.push_back(stream);  // EndDone ends it.
  }
  if (group->dealt.complete()) {
    group->state = Group::State::kDone;
    group->moved = options_.clock->Monotonic();
    group->source = nullptr;
    downlink.serving.erase(group);
  }
}

void PullTable::Forget(const std::shared_ptr<Group>& group) {
  const auto found = groups_.find(group->key());
  if (found != groups_.end() && found->second == group) groups_.erase(found);
  const auto waiting = waiting_.find(group->wanted());
  // The entry itself stays: the coordinator has been asked, and will call back.
  if (waiting != waiting_.end()) waiting->second.erase(group);
  const auto downlink = downlinks_.find(group->request.worker_id());
  if (downlink != downlinks_.end()) downlink->second.serving.erase(group);
}

void PullTable::Close(PullStream* stream) {
  Actions actions;
  // They outlive the lock: they may be the last references.
  Entry last;
  std::shared_ptr<const PullObject> object;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = streams_.find(stream);
    if (found == streams_.end()) return;
    last = std::move(found->second);
    streams_.erase(found);
    last.group->streams.erase(stream);
    if (last.group->streams.empty()) {
      object = LetGo(*last.group);
      if (last.group->state != Group::State::kDone) {
        Forget(last.group);
      } else if (last.group->request.stripe_group() != 0) {
        last.group->dealt = ChunkSet();
        last.group->moved = options_.clock->Monotonic();
        done_.emplace_back(last.group->moved, last.group);
      }
    }
    const std::string& worker = last.group->request.worker_id();
    Downlink& downlink = downlinks_[worker];
    std::erase(downlink.ready, stream);
    downlink.moved = std::max(downlink.moved, last.since);
    --downlink.streams;
    // What it held up may go now.
    Deal(worker, actions);
  }
  Do(std::move(actions));
}

void PullTable::Tick() {
  Actions actions;
  const absl::Duration now = options_.clock->Monotonic();
  {
    absl::MutexLock lock(&mutex_);
    const absl::Status stalled = absl::DeadlineExceededError(
        absl::StrCat("the worker took nothing for ", absl::FormatDuration(options_.stall),
                     ": pull what is missing again"));
    const bool look = now - looked_ >= kLookAtStreams;
    if (look) looked_ = now;
    for (const auto& [stream, entry] : streams_) {
      if (!look) break;
      if (entry.state != Entry::State::kSending) continue;
      const absl::Duration moved =
          std::max(entry.since, downlinks_[entry.group->request.worker_id()].moved);
      if (now - moved > options_.stall) End(stream, stalled, actions);
    }
    while (!done_.empty() && now - done_.front().first > options_.keep_done) {
      const std::shared_ptr<Group> group = done_.front().second.lock();
      // Unless streams have joined it since.
      if (group != nullptr && group->streams.empty() && group->moved == done_.front().first) {
        Forget(group);
      }
      done_.pop_front();
    }
    std::vector<std::string> workers;
    for (const auto& [worker, downlink] : downlinks_) {
      if (!downlink.ready.empty()) workers.push_back(worker);
    }
    for (const std::string& worker : workers) Deal(worker, actions);
    // Its rate's debt is paid by then.
    std::erase_if(downlinks_, [&](const auto& item) {
      return item.second.streams == 0 && now - item.second.moved > options_.keep_done;
    });
  }
  Do(std::move(actions));
}

PullTable::Counters PullTable::counters() const {
  absl::MutexLock lock(&mutex_);
  return {.streams = streams_.size(), .groups = groups_.size(), .waiting_rounds = waiting_.size()};
}

}  // namespace causeway::server
