#include "server/transfer/delta_inbox.h"

#include <algorithm>

namespace causeway::server {
namespace {

// The worker may go on under its next incarnation, or when there is room on the disk again.
bool Passes(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
}

}  // namespace

// All but the constants and what lanes see is guarded by the inbox's lock.
struct DeltaInbox::Kept : Delta {
  enum class State { kReceiving, kContributing, kEnded };
  using Squares = std::vector<std::vector<double>>;  // By chunk.

  Kept(const v1::PushHeader& first, uint64_t number, ByteBudget& memory, Coordinator& coordinator)
      : squares(
            std::make_shared<Squares>(static_cast<size_t>(ChunkSet(first.total_bytes()).chunks()))),
        header(first),
        memory_(memory),
        taken_bytes_(first.total_bytes()) {
    holder = number;
    const auto measure = [&coordinator, measured = squares, fragment = first.fragment(),
                          round = first.round()](int64_t chunk, std::span<const uint8_t> bytes) {
      (*measured)[static_cast<size_t>(chunk)] =
          coordinator.rounds().MeasureLeaf(fragment, round, chunk, bytes);
    };
    chunks = std::make_shared<ChunkAssembly>(first.total_bytes(), measure);
  }
  ~Kept() { ReleaseMemory(); }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  // The object has gone elsewhere, or nowhere.
  void ReleaseMemory() { memory_.Return(std::exchange(taken_bytes_, 0)); }

  const std::shared_ptr<Squares> squares;  // Complete when the chunks are.
  v1::PushHeader header;                   // The latest offer's.
  State state = State::kReceiving;
  Bearers bearers;
  absl::Duration offered;  // Last.

 private:
  ByteBudget& memory_;
  int64_t taken_bytes_;
};

DeltaInbox::DeltaInbox(Coordinator& coordinator, Options options)
    : coordinator_(coordinator), options_(std::move(options)), next_holder_(options_.process) {}

DeltaInbox::~DeltaInbox() = default;

DeltaInbox::Key DeltaInbox::KeyOf(const v1::PushHeader& header) {
  return {header.fragment(), header.round(), header.worker_id()};
}

void DeltaInbox::End(const Bearers& bearers, const absl::StatusOr<v1::PushResponse>& result) {
  for (const auto& [weak, transfer] : bearers) {
    const std::shared_ptr<DeltaBearer> bearer = weak.lock();
    if (bearer != nullptr) bearer->EndOffer(transfer, result);
  }
}

void DeltaInbox::Moved(const std::string& worker_id) {
  const absl::Duration now = options_.clock->Monotonic();
  absl::MutexLock lock(&mutex_);
  const auto found = moved_.find(worker_id);
  if (found != moved_.end()) found->second = now;
}

bool DeltaInbox::IsIdle(const Kept& delta, absl::Duration now) const {
  const bool borne = std::ranges::any_of(
      delta.bearers, [](const Bearer& bearer) { return !bearer.first.expired(); });
  if (!borne) return true;
  // Any chunk of the worker's counts: one object may wait for another.
  const auto moved = moved_.find(delta.header.worker_id());
  return moved == moved_.end() || now - std::max(moved->second, delta.offered) > options_.stall;
}

bool DeltaInbox::EvictOne(Bearers& evicted) {
  const absl::Duration now = options_.clock->Monotonic();
  std::shared_ptr<Kept> longest;  // Not by reference: it may be the last one.
  for (const auto& [key, delta] : deltas_) {
    if (delta->state != Kept::State::kReceiving || !IsIdle(*delta, now)) continue;
    if (longest == nullptr || delta->offered < longest->offered) longest = delta;
  }
  if (longest == nullptr) return false;
  ++counters_.evicted;
  evicted.insert(evicted.end(), longest->bearers.begin(), longest->bearers.end());
  Drop(*longest);
  return true;
}

absl::StatusOr<std::shared_ptr<DeltaInbox::Kept>> DeltaInbox::MakeRoom(const v1::PushHeader& header,
                                                                       Bearers& evicted) {
  while (!options_.memory->Take(header.total_bytes())) {
    if (!EvictOne(evicted)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no room for another ", header.total_bytes(),
                       " bytes: ", options_.memory->taken(), " of ", options_.memory->bytes(),
                       " are taken by objects that are being received; try again later"));
    }
  }
  return std::make_shared<Kept>(header, next_holder_++, *options_.memory, coordinator_);
}

absl::StatusOr<std::shared_ptr<DeltaInbox::Kept>> DeltaInbox::FindOrMake(
    const v1::PushHeader& header, Bearers& replaced, Bearers& evicted) {
  const auto found = deltas_.find(KeyOf(header));
  if (found != deltas_.end()) {
    const std::shared_ptr<Kept> former = found->second;
    if (former->header.object_hash() == header.object_hash()) return former;
    if (former->state == Kept::State::kContributing) {
      return absl::UnavailableError(
          absl::StrCat("another object of ", header.worker_id(), " for round ", header.round(),
                       " of fragment ", header.fragment(), " is being verified; try again"));
    }
    replaced = std::exchange(former->bearers, {});
    Drop(*former);
  }
  ASSIGN_OR_RETURN(std::shared_ptr<Kept> delta, MakeRoom(header, evicted));
  deltas_[KeyOf(header)] = delta;
  return delta;
}

absl::StatusOr<std::shared_ptr<DeltaInbox::Delta>> DeltaInbox::Offer(
    const std::shared_ptr<DeltaBearer>& bearer, uint64_t transfer, const v1::PushHeader& header,
    v1::PushResponse& accepted) {
  // Checks the size against the fragment's, so that nobody makes us allocate what he likes.
  ASSIGN_OR_RETURN(
      const std::optional<v1::PushResponse> held,
      coordinator_.rounds().BeginPush(header, [inbox = weak_from_this(), key = KeyOf(header)] {
        const std::shared_ptr<DeltaInbox> self = inbox.lock();
        if (self != nullptr) self->EndClosed(key);
      }));
  if (held.has_value()) {
    accepted = *held;
    return nullptr;
  }
  absl::StatusOr<std::shared_ptr<Kept>> delta;
  Bearers replaced;
  Bearers evicted;
  bool whole = false;
  bool closed = false;
  {
    absl::MutexLock lock(&mutex_);
    closed = HasClosed(header);
    if (!closed) delta = FindOrMake(header, replaced, evicted);
    if (delta.ok()) {
      Kept& found = **delta;
      const absl::Duration now = options_.clock->Monotonic();
      std::erase_if(found.bearers, [](const Bearer& one) { return one.first.expired(); });
      if (found.bearers.empty()) counters_.resumed_chunks += found.chunks->held().held_chunks();
      const bool known = std::ranges::any_of(found.bearers, [&](const Bearer& one) {
        return one.second == transfer && one.first.lock() == bearer;
      });
      if (!known) found.bearers.emplace_back(bearer, transfer);
      if (header.incarnation() >= found.header.incarnation()) found.header = header;
      found.offered = now;
      moved_.try_emplace(header.worker_id(), now);
      whole = StartContributing(found);
    }
  }
  // The round was faster. It stays closed, so the coordinator has an answer now.
  if (closed) return Offer(bearer, transfer, header, accepted);
  End(replaced, absl::UnavailableError(absl::StrCat(
                    "the worker sends another object for round ", header.round(), " of fragment ",
                    header.fragment(), " now, which takes this one's place")));
  End(evicted, absl::UnavailableError("its memory was needed for another object: offer it again"));
  if (whole) options_.run_long([this, ready = *delta] { Contribute(ready); });
  return delta;
}

bool DeltaInbox::HasClosed(const v1::PushHeader& header) const {
  const auto found = closed_.find(header.fragment());
  return found != closed_.end() && header.round() <= found->second;
}

void DeltaInbox::EndClosed(const Key& key) {
  Bearers bearers;
  v1::PushHeader header;
  {
    absl::MutexLock lock(&mutex_);
    int64_t& last = closed_[std::get<0>(key)];
    last = std::max(last, std::get<1>(key));
    const auto found = deltas_.find(key);
    // One that is complete hears it when it is contributed.
    if (found == deltas_.end() || found->second->state != Kept::State::kReceiving) return;
    const std::shared_ptr<Kept> delta = found->second;
    bearers = std::exchange(delta->bearers, {});
    header = delta->header;
    Drop(*delta);
  }
  const auto held = coordinator_.rounds().BeginPush(header, nullptr);
  if (!held.ok()) {
    End(bearers, held.status());
  } else if (held->has_value()) {
    End(bearers, **held);
  } else {
    End(bearers, absl::UnavailableError("its round has closed: offer it again"));
  }
}

void DeltaInbox::Whole(const std::shared_ptr<Delta>& delta) {
  const auto kept = std::static_pointer_cast<Kept>(delta);
  {
    absl::MutexLock lock(&mutex_);
    if (!StartContributing(*kept)) return;
  }
  options_.run_long([this, kept] { Contribute(kept); });
}

bool DeltaInbox::StartContributing(Kept& delta) {
  if (delta.state != Kept::State::kReceiving || !delta.chunks->held().complete()) return false;
  delta.state = Kept::State::kContributing;
  return true;
}

void DeltaInbox::Contribute(const std::shared_ptr<Kept>& delta) {
  v1::PushHeader header;
  {
    absl::MutexLock lock(&mutex_);
    header = delta->header;
  }
  ReceivedObject object(SharedBytes(*delta->chunks->bytes(), delta->chunks->bytes()));
  object.tree_hash = delta->chunks->tree_hash();
  object.squares = *delta->squares;
  const absl::StatusOr<v1::PushResponse> result =
      coordinator_.rounds().Contribute(header, std::move(object));
  // A delta that is refused for a reason that passes need not be sent again.
  bool again = Passes(result.status());
  Bearers bearers;
  {
    absl::MutexLock lock(&mutex_);
    again = again && !HasClosed(header);
    bearers = std::exchange(delta->bearers, {});
    delta->state = Kept::State::kReceiving;
    if (!again) Drop(*delta);
  }
  if (!again) delta->ReleaseMemory();
  End(bearers, result);
  coordinator_.rounds().MergeDue(header.fragment());
}

void DeltaInbox::Drop(Kept& delta) {
  delta.state = Kept::State::kEnded;
  const std::string worker = delta.header.worker_id();
  const auto found = deltas_.find(KeyOf(delta.header));
  if (found != deltas_.end() && found->second.get() == &delta) deltas_.erase(found);
  const bool others = std::ranges::any_of(
      deltas_, [&worker](const auto& item) { return std::get<2>(item.first) == worker; });
  if (!others) moved_.erase(worker);
}

void DeltaInbox::Tick() {
  const absl::Duration now = options_.clock->Monotonic();
  Bearers dropped;
  {
    absl::MutexLock lock(&mutex_);
    std::vector<std::shared_ptr<Kept>> idle;
    for (const auto& [key, delta] : deltas_) {
      if (delta->state != Kept::State::kReceiving || !IsIdle(*delta, now)) continue;
      if (now - delta->offered > options_.keep_idle) idle.push_back(delta);
    }
    for (const auto& delta : idle) {
      dropped.insert(dropped.end(), delta->bearers.begin(), delta->bearers.end());
      Drop(*delta);
    }
  }
  End(dropped, absl::UnavailableError("nothing of it came for long: offer it again"));
}

DeltaInbox::Counters DeltaInbox::counters() const {
  absl::MutexLock lock(&mutex_);
  Counters counters = counters_;
  counters.deltas = deltas_.size();
  return counters;
}

}  // namespace causeway::server
