#include "server/service/push_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"

namespace causeway::server {
namespace {

// The disk and the round's state are asked about only so often.
constexpr absl::Duration kAdmissionInterval = absl::Seconds(1);

}  // namespace

// All but the memory is guarded by the table's lock. A chunk's memory belongs to whoever PlaceOf
// gave it to, until Placed.
class PushAssembly {
 public:
  enum class State { kReceiving, kContributing, kEnded };

  PushAssembly(const v1::PushHeader& first, ByteBudget& memory)
      : fragment(first.fragment()),
        round(first.round()),
        header(first),
        held(first.total_bytes()),
        arriving(first.total_bytes()),
        leaves(static_cast<size_t>(held.chunks())),
        bytes(std::make_shared<ByteBuffer>(static_cast<size_t>(first.total_bytes()))),
        memory_(memory),
        taken_bytes_(first.total_bytes()) {}
  ~PushAssembly() { ReleaseMemory(); }
  PushAssembly(const PushAssembly&) = delete;
  PushAssembly& operator=(const PushAssembly&) = delete;

  std::span<uint8_t> Place(int64_t chunk) const {
    return std::span(*bytes).subspan(static_cast<size_t>(ChunkSet::Offset(chunk)),
                                     static_cast<size_t>(held.Size(chunk)));
  }
  // The object has gone elsewhere, or nowhere.
  void ReleaseMemory() { memory_.Return(std::exchange(taken_bytes_, 0)); }

  const int fragment;
  const int64_t round;
  v1::PushHeader header;  // The latest stream's.
  State state = State::kReceiving;
  ChunkSet held;
  ChunkSet arriving;             // PlaceOf was called, Placed not yet.
  std::vector<uint64_t> leaves;  // Checksums of the chunks that are held.
  bool leaves_valid = true;      // So the coordinator said of all of them.
  const std::shared_ptr<ByteBuffer> bytes;
  std::set<PushStream*> streams;
  absl::Duration moved;       // The last chunk or stream came.
  absl::Duration idle_since;  // Without streams.

 private:
  ByteBudget& memory_;
  int64_t taken_bytes_;
};

PushTable::PushTable(Coordinator& coordinator, Options options)
    : coordinator_(coordinator), options_(std::move(options)) {}

PushTable::~PushTable() = default;

PushTable::Key PushTable::KeyOf(const v1::PushHeader& header) {
  return {header.fragment(), header.round(), header.worker_id()};
}

absl::Status PushTable::Open(std::shared_ptr<PushStream> stream, const std::string& sender) {
  const absl::Duration now = options_.clock->Monotonic();
  absl::MutexLock lock(&mutex_);
  if (streams_.size() >= options_.max_streams) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the coordinator receives over ", options_.max_streams, " streams already; try again"));
  }
  size_t& of_sender = senders_[sender];
  if (of_sender >= options_.max_streams_of_sender) {
    return absl::ResourceExhaustedError(absl::StrCat(sender, " sends over ",
                                                     options_.max_streams_of_sender,
                                                     " streams already; try again later"));
  }
  ++of_sender;
  PushStream* const raw = stream.get();
  streams_[raw] = {
      .stream = std::move(stream), .sender = sender, .assembly = nullptr, .opened = now};
  return absl::OkStatus();
}

bool PushTable::EvictOne() {
  auto longest = assemblies_.end();
  for (auto it = assemblies_.begin(); it != assemblies_.end(); ++it) {
    const PushAssembly& assembly = *it->second;
    if (assembly.state != PushAssembly::State::kReceiving || !assembly.streams.empty()) continue;
    if (longest == assemblies_.end() || assembly.idle_since < longest->second->idle_since) {
      longest = it;
    }
  }
  if (longest == assemblies_.end()) return false;
  ++counters_.evicted;
  // Not by reference: it may be the last one.
  const std::shared_ptr<PushAssembly> evicted = longest->second;
  Drop(*evicted);
  return true;
}

absl::StatusOr<std::shared_ptr<PushAssembly>> PushTable::MakeRoom(const v1::PushHeader& header) {
  while (!options_.memory->Take(header.total_bytes())) {
    if (!EvictOne()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no room for another ", header.total_bytes(),
                       " bytes: ", options_.memory->taken(), " of ", options_.memory->bytes(),
                       " are taken by objects that are being received; try again later"));
    }
  }
  return std::make_shared<PushAssembly>(header, *options_.memory);
}

absl::StatusOr<std::shared_ptr<PushAssembly>> PushTable::Attach(PushStream* stream,
                                                                const v1::PushHeader& header) {
  // Checks the size against the fragment's, so that nobody makes us allocate what he likes.
  ASSIGN_OR_RETURN(const int64_t accepted, coordinator_.AdmitPush(header));
  if (accepted == header.total_bytes()) return nullptr;
  absl::StatusOr<std::shared_ptr<PushAssembly>> assembly;
  Streams replaced;
  bool complete = false;
  {
    absl::MutexLock lock(&mutex_);
    assembly = FindOrMake(header, replaced);
    if (assembly.ok()) complete = Join(stream, header, *assembly);
  }
  for (const auto& former : replaced) {
    former->End(absl::UnavailableError(
        absl::StrCat("the worker sends another object for round ", header.round(), " of fragment ",
                     header.fragment(), " now, which takes this one's place")));
  }
  if (complete) options_.run_long([this, ready = *assembly] { Contribute(ready); });
  return assembly;
}

absl::StatusOr<std::shared_ptr<PushAssembly>> PushTable::FindOrMake(const v1::PushHeader& header,
                                                                    Streams& replaced) {
  const auto found = assemblies_.find(KeyOf(header));
  if (found != assemblies_.end()) {
    const std::shared_ptr<PushAssembly> former = found->second;
    if (former->header.object_hash() == header.object_hash()) return former;
    if (former->state == PushAssembly::State::kContributing) {
      return absl::UnavailableError(
          absl::StrCat("another object of ", header.worker_id(), " for round ", header.round(),
                       " of fragment ", header.fragment(), " is being verified; try again"));
    }
    replaced = TakeStreams(*former);
    Drop(*former);
  }
  ASSIGN_OR_RETURN(std::shared_ptr<PushAssembly> assembly, MakeRoom(header));
  assembly->idle_since = options_.clock->Monotonic();
  assemblies_[KeyOf(header)] = assembly;
  return assembly;
}

bool PushTable::Join(PushStream* stream, const v1::PushHeader& header,
                     const std::shared_ptr<PushAssembly>& assembly) {
  const auto entry = streams_.find(stream);
  if (entry == streams_.end()) return false;  // It broke meanwhile.
  const absl::Duration now = options_.clock->Monotonic();
  if (assembly->streams.empty()) counters_.resumed_chunks += assembly->held.held_chunks();
  if (header.incarnation() >= assembly->header.incarnation()) assembly->header = header;
  assembly->streams.insert(stream);
  assembly->moved = now;
  moved_[header.worker_id()] = now;
  entry->second.assembly = assembly;
  return StartContributing(*assembly);
}

std::span<uint8_t> PushTable::PlaceOf(PushAssembly& assembly, int64_t chunk) {
  absl::MutexLock lock(&mutex_);
  if (assembly.state != PushAssembly::State::kReceiving) return {};
  if (assembly.held.Holds(chunk) || !assembly.arriving.Add(chunk)) {
    ++counters_.duplicate_chunks;
    return {};
  }
  return assembly.Place(chunk);
}

void PushTable::Placed(const std::shared_ptr<PushAssembly>& assembly, int64_t chunk,
                       const absl::StatusOr<uint64_t>& checksum) {
  const bool valid =
      checksum.ok() &&
      coordinator_.ValidateLeaf(assembly->fragment, assembly->round, chunk, assembly->Place(chunk))
          .ok();
  const absl::Duration now = options_.clock->Monotonic();
  {
    absl::MutexLock lock(&mutex_);
    assembly->arriving.Remove(chunk);
    if (!checksum.ok() || assembly->state != PushAssembly::State::kReceiving) return;
    assembly->held.Add(chunk);
    assembly->leaves[static_cast<size_t>(chunk)] = *checksum;
    assembly->leaves_valid &= valid;
    assembly->moved = now;
    moved_[assembly->header.worker_id()] = now;
    if (!StartContributing(*assembly)) return;
  }
  options_.run_long([this, assembly] { Contribute(assembly); });
}

bool PushTable::StartContributing(PushAssembly& assembly) {
  if (assembly.state != PushAssembly::State::kReceiving || !assembly.held.complete()) return false;
  assembly.state = PushAssembly::State::kContributing;
  return true;
}

void PushTable::Contribute(const std::shared_ptr<PushAssembly>& assembly) {
  v1::PushHeader header;
  ReceivedObject object(SharedBytes(*assembly->bytes, assembly->bytes));
  {
    absl::MutexLock lock(&mutex_);
    header = assembly->header;
    object.tree_hash = TreeRoot(assembly->leaves);
    object.leaves_valid = assembly->leaves_valid;
  }
  // Once more: what is refused for a reason that passes need not be sent again.
  absl::StatusOr<PushAccepted> result;
  const absl::StatusOr<int64_t> admitted = coordinator_.AdmitPush(header);
  const bool again =
      absl::IsUnavailable(admitted.status()) || absl::IsResourceExhausted(admitted.status());
  if (!admitted.ok()) {
    result = admitted.status();
  } else if (*admitted == header.total_bytes()) {
    result = PushAccepted{.duplicate = true};
  } else {
    const absl::Status status = coordinator_.Contribute(header, std::move(object));
    assembly->ReleaseMemory();
    if (status.ok()) {
      result = PushAccepted{};
    } else {
      result = status;
    }
  }
  if (result.ok()) result->quarantined = coordinator_.IsQuarantined(header);
  Streams streams;
  {
    absl::MutexLock lock(&mutex_);
    streams = TakeStreams(*assembly);
    assembly->state = PushAssembly::State::kReceiving;
    if (!again) Drop(*assembly);
  }
  for (const auto& stream : streams) stream->End(result);
}

PushTable::Streams PushTable::TakeStreams(PushAssembly& assembly) {
  Streams streams;
  for (PushStream* const stream : assembly.streams) {
    Entry& entry = streams_[stream];
    streams.push_back(entry.stream);
    entry.assembly = nullptr;
    entry.half_closed = true;  // It is being ended: nobody waits for its header.
  }
  assembly.streams.clear();
  assembly.idle_since = options_.clock->Monotonic();
  return streams;
}

void PushTable::Drop(PushAssembly& assembly) {
  assembly.state = PushAssembly::State::kEnded;
  const std::string worker = assembly.header.worker_id();
  const auto found = assemblies_.find(KeyOf(assembly.header));
  if (found != assemblies_.end() && found->second.get() == &assembly) assemblies_.erase(found);
  const bool others = std::ranges::any_of(
      assemblies_, [&worker](const auto& item) { return std::get<2>(item.first) == worker; });
  if (!others) moved_.erase(worker);
}

void PushTable::HalfClose(PushStream* stream) {
  absl::MutexLock lock(&mutex_);
  const auto entry = streams_.find(stream);
  if (entry != streams_.end()) entry->second.half_closed = true;
}

void PushTable::Close(PushStream* stream) {
  const absl::Duration now = options_.clock->Monotonic();
  Entry last;  // Outlives the lock: it may be the last reference to stream or assembly.
  absl::MutexLock lock(&mutex_);
  const auto entry = streams_.find(stream);
  if (entry == streams_.end()) return;
  last = std::move(entry->second);
  streams_.erase(entry);
  const auto sender = senders_.find(last.sender);
  if (--sender->second == 0) senders_.erase(sender);
  if (last.assembly == nullptr) return;
  last.assembly->streams.erase(stream);
  if (last.assembly->streams.empty()) last.assembly->idle_since = now;
}

absl::StatusOr<v1::QueryTransferResponse> PushTable::Query(
    const v1::QueryTransferRequest& request) {
  ASSIGN_OR_RETURN(v1::QueryTransferResponse response, coordinator_.QueryTransfer(request));
  if (response.state() != v1::QueryTransferResponse::UNKNOWN) return response;
  absl::MutexLock lock(&mutex_);
  const auto found = assemblies_.find({request.fragment(), request.round(), request.worker_id()});
  if (found == assemblies_.end()) return response;
  const PushAssembly& assembly = *found->second;
  if (assembly.header.object_hash() != request.object_hash() || assembly.held.held_chunks() == 0) {
    return response;
  }
  response.set_state(v1::QueryTransferResponse::PARTIAL);
  response.set_durable_bytes(assembly.held.held_bytes());
  response.set_held_chunks(assembly.held.ToWire());
  return response;
}

absl::Status PushTable::Overdue(const PushAssembly& assembly, absl::Duration now) const {
  if (assembly.state != PushAssembly::State::kReceiving || assembly.streams.empty()) {
    return absl::OkStatus();
  }
  const bool all_closed = std::ranges::all_of(
      assembly.streams, [this](PushStream* stream) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return streams_.at(stream).half_closed;
      });
  if (all_closed && now - assembly.moved > options_.last_stream) {
    return absl::UnavailableError(absl::StrCat("the push ended after ", assembly.held.held_bytes(),
                                               " of ", assembly.held.object_bytes(),
                                               " bytes: ask what is held, send the rest"));
  }
  // Any chunk of the worker's counts: streams of one object may wait for those of another.
  const auto moved = moved_.find(assembly.header.worker_id());
  if (moved != moved_.end() && now - moved->second > options_.stall) {
    return absl::DeadlineExceededError(absl::StrCat("no chunk came for ",
                                                    absl::FormatDuration(options_.stall),
                                                    ": ask what is held, send the rest"));
  }
  return absl::OkStatus();
}

void PushTable::Tick() {
  const absl::Duration now = options_.clock->Monotonic();
  std::vector<std::pair<std::shared_ptr<PushStream>, absl::Status>> ends;
  bool check_admissions = false;
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [stream, entry] : streams_) {
      if (entry.assembly != nullptr || entry.half_closed) continue;
      if (now - entry.opened <= options_.stall) continue;
      entry.half_closed = true;
      ends.emplace_back(entry.stream,
                        absl::DeadlineExceededError("no header came over the stream"));
    }
    std::vector<std::shared_ptr<PushAssembly>> idle;
    for (const auto& [key, assembly] : assemblies_) {
      const absl::Status overdue = Overdue(*assembly, now);
      if (!overdue.ok()) {
        for (auto& stream : TakeStreams(*assembly)) ends.emplace_back(std::move(stream), overdue);
      }
      if (assembly->state == PushAssembly::State::kReceiving && assembly->streams.empty() &&
          now - assembly->idle_since > options_.keep_idle) {
        idle.push_back(assembly);
      }
    }
    for (const auto& assembly : idle) Drop(*assembly);
    check_admissions = now >= next_admissions_;
    if (check_admissions) next_admissions_ = now + kAdmissionInterval;
  }
  for (const auto& [stream, status] : ends) {
    Log().info("a push is ended: {}", std::string(status.message()));
    stream->End(status);
  }
  if (check_admissions) CheckAdmissions();
}

void PushTable::CheckAdmissions() {
  std::vector<std::pair<std::shared_ptr<PushAssembly>, v1::PushHeader>> receiving;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [key, assembly] : assemblies_) {
      if (assembly->state != PushAssembly::State::kReceiving) continue;
      receiving.emplace_back(assembly, assembly->header);
    }
  }
  for (const auto& [assembly, header] : receiving) {
    const absl::StatusOr<int64_t> admitted = coordinator_.AdmitPush(header);
    if (admitted.ok() && *admitted != header.total_bytes()) continue;
    // The worker may go on under its next incarnation, or when there is room on the disk again.
    const bool keep =
        absl::IsUnavailable(admitted.status()) || absl::IsResourceExhausted(admitted.status());
    Streams streams;
    {
      absl::MutexLock lock(&mutex_);
      if (assembly->state != PushAssembly::State::kReceiving ||
          assembly->header.incarnation() != header.incarnation()) {
        continue;
      }
      if (!assembly->streams.empty()) streams = TakeStreams(*assembly);
      if (!keep) Drop(*assembly);
    }
    absl::StatusOr<PushAccepted> result = PushAccepted{.duplicate = true};
    if (admitted.ok()) {
      result->quarantined = coordinator_.IsQuarantined(header);
    } else {
      result = admitted.status();
    }
    for (const auto& stream : streams) stream->End(result);
  }
}

PushTable::Counters PushTable::counters() const {
  absl::MutexLock lock(&mutex_);
  Counters counters = counters_;
  counters.streams = streams_.size();
  counters.assemblies = assemblies_.size();
  return counters;
}

}  // namespace causeway::server
