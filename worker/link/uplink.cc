#include "worker/link/uplink.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/codec/entropy_stage.h"
#include "common/rpc/chunk_buffer.h"
#include "common/rpc/chunk_set.h"
#include "common/rpc/status.h"
#include "common/rpc/wire.h"
#include "common/telemetry/log.h"
#include "worker/link/chunk_ledger.h"
#include "worker/link/retry.h"

namespace causeway::worker {
namespace {

constexpr char kPushMethod[] = "/causeway.v1.Exchange/Push";
constexpr absl::Duration kQueryTimeout = absl::Seconds(10);
constexpr absl::Duration kShortestWait = absl::Milliseconds(1);
// Packed chunks that wait for a lane, for each lane: one is being written, one is next.
constexpr size_t kPackedPerLane = 2;

// A chunk on its way.
struct Piece {
  int64_t chunk = -1;
  ChunkFields fields;
  std::span<const uint8_t> data;
  std::shared_ptr<const void> owner;
};

std::span<const uint8_t> ChunkBytes(std::span<const uint8_t> object, int64_t chunk) {
  const auto offset = static_cast<size_t>(ChunkSet::Offset(chunk));
  return object.subspan(offset, std::min(kChunkBytes, object.size() - offset));
}

Piece PackChunk(const UploadObject& object, int64_t chunk, uint64_t leaf) {
  Piece piece = {.chunk = chunk,
                 .fields = {.offset = ChunkSet::Offset(chunk), .checksum = leaf},
                 .data = ChunkBytes(object.bytes, chunk),
                 .owner = object.owner};
  const auto packed = std::make_shared<std::string>();
  if (!EntropyPack(piece.data, *packed)) return piece;
  piece.fields.unpacked_bytes = static_cast<int32_t>(piece.data.size());
  piece.fields.checksum = Checksum64(absl::string_view(*packed));
  piece.data = {reinterpret_cast<const uint8_t*>(packed->data()), packed->size()};
  piece.owner = packed;
  return piece;
}

}  // namespace

// One Push stream. It is made, started and destroyed by the thread of its transfer; the state is
// guarded by the uplink's mutex.
class Uplink::Stripe final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Stripe(Uplink* uplink, Transfer* transfer, int lane)
      : uplink_(uplink), transfer_(transfer), lane_(lane) {}

  void Start(Lane& lane, const v1::PushHeader& header) {
    v1::PushRequest request;
    *request.mutable_header() = header;
    outgoing = MessageToBuffer(request);
    lane.generic_stub().PrepareBidiStreamingCall(&context_, kPushMethod, {}, this);
    AddHold();  // Writes are started by whoever finds the lane free.
    StartRead(&incoming);
    StartWrite(&outgoing);
    StartCall();
  }
  // Any thread.
  void Cancel() { context_.TryCancel(); }

  Transfer& transfer() const { return *transfer_; }
  int lane() const { return lane_; }

  void OnWriteDone(bool ok) override { uplink_->OnWritten(*this, ok); }
  void OnReadDone(bool ok) override { uplink_->OnRead(*this, ok); }
  void OnDone(const grpc::Status& end) override { uplink_->OnDone(*this, FromGrpcStatus(end)); }

  // Of the write under way, and of the only read.
  grpc::ByteBuffer outgoing;
  grpc::ByteBuffer incoming;
  int64_t outgoing_bytes = 0;
  absl::Duration write_began;
  bool writing = true;     // The header at first.
  bool open = false;       // The header is written, and the stream not known to have ended.
  bool closed = false;     // Nothing more will be read, and nothing may be written.
  bool ended = false;      // gRPC is done with it.
  bool stalled = false;    // It was cancelled because nothing moved.
  int64_t chunks = 0;      // Written.
  int damaged_before = 0;  // The transfer's count when the stream was opened.
  absl::Status result;     // How it ended.

 private:
  Uplink* const uplink_;
  Transfer* const transfer_;
  const int lane_;
  grpc::ClientContext context_;
};

struct Uplink::Transfer {
  Transfer(UploadObject what, int lane_count)
      : object(std::move(what)),
        stripes(static_cast<size_t>(lane_count)),
        tries(static_cast<size_t>(lane_count)),
        ledger(static_cast<int64_t>(object.bytes.size()), object.maybe_held) {
    if (std::ssize(object.leaves) != ChunkSet(std::ssize(object.bytes)).chunks()) {
      object.leaves = LeafChecksums(object.bytes);
    }
    object.header.set_total_bytes(static_cast<int64_t>(object.bytes.size()));
    object.header.set_object_hash(TreeRoot(object.leaves));
  }
  uint64_t leaf(int64_t chunk) const { return object.leaves[static_cast<size_t>(chunk)]; }
  int lanes() const { return static_cast<int>(stripes.size()); }

  UploadObject object;
  int64_t number = 0;  // Among objects that are due together, the older one goes first.

  // Guarded by the uplink's mutex.
  std::vector<std::unique_ptr<Stripe>> stripes;  // By lane; null: not open.
  struct Tries {
    int opened = 0;
    int failures = 0;  // In a row.
    absl::Duration not_before = -absl::InfiniteDuration();
  };
  std::vector<Tries> tries;  // By lane.
  ChunkLedger ledger;
  std::deque<Piece> packed;
  bool news = false;  // For the thread of the Push.
  int failed_queries = 0;
  absl::Duration query_not_before = -absl::InfiniteDuration();
  grpc::ClientContext* query = nullptr;
  absl::Duration asked_whether_arrived = -absl::InfiniteDuration();
  bool cut = false;  // A stream broke since the coordinator was asked last.
  int stalls = 0;
  int damaged = 0;
  int64_t held_bytes = 0;
  std::optional<absl::StatusOr<v1::PushResponse>> outcome;
};

Uplink::Uplink(Link* link, std::function<uint64_t()> incarnation)
    : link_(link),
      incarnation_(std::move(incarnation)),
      clock_(link->options().clock),
      lanes_(kMaxConnections),
      limiter_(link->options().max_upload_bytes_per_second) {
  for (LaneState& lane : lanes_) lane.moved = -absl::InfiniteDuration();
}

Uplink::~Uplink() = default;

void Uplink::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  for (Transfer* const transfer : transfers_) {
    transfer->news = true;
    if (transfer->query != nullptr) transfer->query->TryCancel();
    for (const std::unique_ptr<Stripe>& stripe : transfer->stripes) {
      if (stripe != nullptr) stripe->Cancel();
    }
  }
}

absl::StatusOr<v1::PushResponse> Uplink::Push(UploadObject object) {
  Transfer transfer(std::move(object), link_->connections(Direction::kUp));
  {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) return ExchangeCancelled();
    transfer.number = transfers_begun_++;
    transfers_.push_back(&transfer);
    std::ranges::sort(transfers_, {}, [](const Transfer* one) {
      return std::pair(one->object.due_step, one->number);
    });
  }
  link_->meter().Begin(Direction::kUp);
  absl::StatusOr<v1::PushResponse> response = Drive(transfer);
  link_->EndObject(Direction::kUp, response.ok());
  return response;
}

absl::StatusOr<v1::PushResponse> Uplink::Drive(Transfer& transfer) {
  for (;;) {
    Collect(transfer);
    {
      absl::MutexLock lock(&mutex_);
      if (cancelled_) transfer.outcome = ExchangeCancelled();
      if (transfer.outcome.has_value()) break;
    }
    OpenStripes(transfer);
    Ask(transfer);
    const bool packed = Pack(transfer);
    WakeLanes();
    if (packed) continue;
    CancelStalled(transfer);
    AskWhetherArrived(transfer);
    link_->Refresh();
    Wait(transfer);
  }
  Close(transfer);
  return *std::move(transfer.outcome);
}

void Uplink::OpenStripes(Transfer& transfer) {
  v1::PushHeader header = transfer.object.header;
  header.set_incarnation(incarnation_());
  for (int lane = 0; lane < transfer.lanes(); ++lane) {
    Lane& over = link_->lane(lane);
    Stripe* stripe = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      std::unique_ptr<Stripe>& slot = transfer.stripes[static_cast<size_t>(lane)];
      Transfer::Tries& tries = transfer.tries[static_cast<size_t>(lane)];
      const absl::Duration now = clock_->Monotonic();
      if (cancelled_ || slot != nullptr || now < tries.not_before) continue;
      header.set_attempt(static_cast<uint32_t>(++tries.opened));
      header.set_stripe(lane);
      slot = std::make_unique<Stripe>(this, &transfer, lane);
      stripe = slot.get();
      stripe->write_began = now;
      stripe->damaged_before = transfer.damaged;
    }
    stripe->Start(over, header);
  }
}

void Uplink::Collect(Transfer& transfer) {
  std::vector<std::unique_ptr<Stripe>> ended;
  {
    absl::MutexLock lock(&mutex_);
    for (std::unique_ptr<Stripe>& stripe : transfer.stripes) {
      if (stripe == nullptr || !stripe->ended) continue;
      Conclude(transfer, *stripe);
      ended.push_back(std::move(stripe));
    }
    if (ended.empty() || cancelled_ || transfer.outcome.has_value()) return;
  }
  Log().warn("push of fragment {} round {}: {} of {} streams broke, trying again: {}",
             transfer.object.header.fragment(), transfer.object.header.round(), ended.size(),
             transfer.lanes(), std::string(ended.front()->result.message()));
}

void Uplink::Conclude(Transfer& transfer, const Stripe& stripe) {
  absl::Status status = stripe.result;
  if (status.ok()) {
    v1::PushResponse response;
    status = BufferToMessage(stripe.incoming, response);
    const int64_t total = transfer.object.header.total_bytes();
    if (status.ok() && response.durable_bytes() != total) {
      status = absl::InternalError(absl::StrCat("the coordinator acknowledges ",
                                                response.durable_bytes(), " bytes of an object of ",
                                                total, ": it has not kept what was sent"));
    }
    if (status.ok()) {
      transfer.outcome = std::move(response);
      return;
    }
  }
  if (transfer.outcome.has_value()) return;
  if (absl::IsDataLoss(status)) {
    // Streams that were open together may all speak of the same damage.
    if (stripe.damaged_before == transfer.damaged) ++transfer.damaged;
    if (transfer.damaged >= kMaxDamaged) transfer.outcome = status;
  } else if (!IsRetryable(status)) {
    transfer.outcome = status;
  }
  transfer.cut |= transfer.ledger.Doubt(stripe.lane()) > 0;
  transfer.stalls += stripe.stalled;
  Transfer::Tries& tries = transfer.tries[static_cast<size_t>(stripe.lane())];
  tries.failures = stripe.chunks > 0 ? 1 : tries.failures + 1;
  tries.not_before = clock_->Monotonic() + BackOff(tries.failures);
  // Not at once: what has arrived at the coordinator may not have been read there yet.
  transfer.query_not_before = std::max(transfer.query_not_before, tries.not_before);
}

absl::StatusOr<v1::QueryTransferResponse> Uplink::Query(Transfer& transfer) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kQueryTimeout));
  int lane = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) return ExchangeCancelled();
    transfer.query = &context;
    // A lane that works, or one after the other.
    lane = transfer.failed_queries % transfer.lanes();
    for (const std::unique_ptr<Stripe>& stripe : transfer.stripes) {
      if (stripe != nullptr && stripe->open && transfer.failed_queries == 0) lane = stripe->lane();
    }
  }
  const v1::PushHeader& header = transfer.object.header;
  v1::QueryTransferRequest request;
  request.set_run_id(header.run_id());
  request.set_worker_id(header.worker_id());
  request.set_fragment(header.fragment());
  request.set_round(header.round());
  request.set_object_hash(header.object_hash());
  v1::QueryTransferResponse response;
  const absl::Status status =
      FromGrpcStatus(link_->lane(lane).exchange_stub().QueryTransfer(&context, request, &response));
  absl::MutexLock lock(&mutex_);
  transfer.query = nullptr;
  RETURN_IF_ERROR(status);
  return response;
}

absl::StatusOr<ChunkSet> Uplink::QueryHeld(Transfer& transfer) {
  ASSIGN_OR_RETURN(const v1::QueryTransferResponse response, Query(transfer));
  const auto total = static_cast<int64_t>(transfer.object.bytes.size());
  if (response.state() == v1::QueryTransferResponse::PARTIAL) {
    return ChunkSet::FromWire(total, response.held_chunks());
  }
  // That the round closed without it is what the next stream is told, too.
  ChunkSet held(total);
  if (response.state() == v1::QueryTransferResponse::ACCEPTED) {
    for (int64_t chunk = 0; chunk < held.chunks(); ++chunk) held.Add(chunk);
  }
  return held;
}

void Uplink::Ask(Transfer& transfer) {
  {
    absl::MutexLock lock(&mutex_);
    if (!transfer.ledger.doubtful() || clock_->Monotonic() < transfer.query_not_before) return;
  }
  const absl::StatusOr<ChunkSet> held = QueryHeld(transfer);
  absl::MutexLock lock(&mutex_);
  if (!held.ok()) {
    if (!IsRetryable(held.status())) transfer.outcome = held.status();
    transfer.query_not_before = clock_->Monotonic() + BackOff(++transfer.failed_queries);
    return;
  }
  transfer.failed_queries = 0;
  if (held->held_bytes() > transfer.held_bytes) transfer.damaged = 0;
  transfer.held_bytes = held->held_bytes();
  if (std::exchange(transfer.cut, false) || held->held_chunks() > 0) link_->meter().AddResume();
  transfer.ledger.Resolve(*held);
}

void Uplink::AskWhetherArrived(Transfer& transfer) {
  const absl::Duration limit = link_->stall_limit(Direction::kUp);
  {
    absl::MutexLock lock(&mutex_);
    const absl::Duration now = clock_->Monotonic();
    absl::Duration quiet_since = transfer.asked_whether_arrived;
    for (const std::unique_ptr<Stripe>& stripe : transfer.stripes) {
      if (stripe == nullptr) continue;
      if (stripe->writing) return;
      quiet_since = std::max(quiet_since, stripe->write_began);
    }
    if (Waiting(transfer) || transfer.ledger.doubtful() || now - quiet_since <= limit) return;
    transfer.asked_whether_arrived = now;
  }
  const absl::StatusOr<ChunkSet> held = QueryHeld(transfer);
  if (!held.ok()) return;  // A connection that is dead is ended by keepalive.
  absl::MutexLock lock(&mutex_);
  for (const std::unique_ptr<Stripe>& stripe : transfer.stripes) {
    if (stripe == nullptr || !transfer.ledger.Lacks(stripe->lane(), *held)) continue;
    stripe->stalled = true;
    stripe->Cancel();
  }
}

bool Uplink::Pack(Transfer& transfer) {
  if (!transfer.object.entropy) return false;
  int64_t chunk = -1;
  {
    absl::MutexLock lock(&mutex_);
    if (transfer.packed.size() >= kPackedPerLane * transfer.stripes.size()) return false;
    chunk = transfer.ledger.Take();
  }
  if (chunk < 0) return false;
  Piece piece = PackChunk(transfer.object, chunk, transfer.leaf(chunk));
  absl::MutexLock lock(&mutex_);
  transfer.packed.push_back(std::move(piece));
  return true;
}

void Uplink::CancelStalled(Transfer& transfer) {
  const absl::Duration limit = link_->stall_limit(Direction::kUp);
  absl::MutexLock lock(&mutex_);
  const absl::Duration now = clock_->Monotonic();
  for (const std::unique_ptr<Stripe>& stripe : transfer.stripes) {
    if (stripe == nullptr || !stripe->writing || stripe->stalled) continue;
    const LaneState& lane = lanes_[static_cast<size_t>(stripe->lane())];
    const absl::Duration idle = now - std::max(stripe->write_began, lane.moved);
    if (idle <= Patience(limit, transfer.stalls)) continue;
    stripe->stalled = true;
    stripe->Cancel();
  }
}

void Uplink::Wait(Transfer& transfer) {
  absl::MutexLock lock(&mutex_);
  const absl::Duration now = clock_->Monotonic();
  absl::Duration timeout = link_->options().poll;
  for (size_t lane = 0; lane < transfer.stripes.size(); ++lane) {
    if (transfer.stripes[lane] != nullptr) continue;
    timeout = std::min(timeout, transfer.tries[lane].not_before - now);
  }
  if (transfer.ledger.doubtful()) timeout = std::min(timeout, transfer.query_not_before - now);
  const absl::Duration credit = limiter_.Wait(now);
  if (credit > absl::ZeroDuration() && Waiting(transfer)) timeout = std::min(timeout, credit);
  mutex_.AwaitWithTimeout(absl::Condition(&transfer.news), std::max(timeout, kShortestWait));
  transfer.news = false;
}

void Uplink::Close(Transfer& transfer) {
  {
    absl::MutexLock lock(&mutex_);
    std::erase(transfers_, &transfer);
    NoteBlocked();
    for (const std::unique_ptr<Stripe>& stripe : transfer.stripes) {
      if (stripe != nullptr && !stripe->ended) stripe->Cancel();
    }
    const auto ended = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return std::ranges::all_of(transfer.stripes, [](const std::unique_ptr<Stripe>& stripe) {
        return stripe == nullptr || stripe->ended;
      });
    };
    mutex_.Await(absl::Condition(&ended));
  }
  // Here, and not on gRPC's threads, which must not be the last to let go of a channel.
  transfer.stripes.clear();
}

bool Uplink::Waiting(const Transfer& transfer) const {
  return transfer.object.entropy ? !transfer.packed.empty() : transfer.ledger.waiting();
}

void Uplink::WakeLanes() {
  for (int lane = 0; lane < kMaxConnections; ++lane) {
    Stripe* stripe = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      stripe = NextWrite(lane);
    }
    if (stripe != nullptr) stripe->StartWrite(&stripe->outgoing);
  }
  absl::MutexLock lock(&mutex_);
  NoteBlocked();
}

Uplink::Stripe* Uplink::NextWrite(int lane) {
  LaneState& state = lanes_[static_cast<size_t>(lane)];
  if (state.writer != nullptr || cancelled_) return nullptr;
  for (Transfer* const transfer : transfers_) {
    if (lane >= transfer->lanes() || !Waiting(*transfer)) continue;
    Stripe* const stripe = transfer->stripes[static_cast<size_t>(lane)].get();
    if (stripe == nullptr || !stripe->open || stripe->writing) continue;
    const absl::Duration now = clock_->Monotonic();
    if (limiter_.Wait(now) > absl::ZeroDuration()) return nullptr;
    Piece piece;
    if (transfer->object.entropy) {
      piece = std::move(transfer->packed.front());
      transfer->packed.pop_front();
      transfer->news = true;  // There is room for another.
    } else {
      const int64_t chunk = transfer->ledger.Take();
      piece = {.chunk = chunk,
               .fields = {.offset = ChunkSet::Offset(chunk), .checksum = transfer->leaf(chunk)},
               .data = ChunkBytes(transfer->object.bytes, chunk),
               .owner = transfer->object.owner};
    }
    if (!transfer->ledger.Give(piece.chunk, lane)) link_->meter().AddResent(1);
    stripe->outgoing_bytes = static_cast<int64_t>(piece.data.size());
    limiter_.Spend(stripe->outgoing_bytes);
    stripe->outgoing = ChunkToBuffer(piece.fields, piece.data, std::move(piece.owner));
    stripe->write_began = now;
    stripe->writing = true;
    state.writer = stripe;
    return stripe;
  }
  return nullptr;
}

void Uplink::OnWritten(Stripe& stripe, bool ok) {
  Stripe* next = nullptr;
  bool release = false;
  {
    absl::MutexLock lock(&mutex_);
    LaneState& lane = lanes_[static_cast<size_t>(stripe.lane())];
    stripe.writing = false;
    if (ok) lane.moved = clock_->Monotonic();
    if (lane.writer == &stripe) {
      lane.writer = nullptr;
      stripe.chunks += ok;
      if (ok) link_->meter().Add(Direction::kUp, stripe.outgoing_bytes);
    }
    stripe.open = ok && !stripe.closed;
    release = stripe.closed;
    next = NextWrite(stripe.lane());
    NoteBlocked();
  }
  if (next != nullptr) next->StartWrite(&next->outgoing);
  if (release) stripe.RemoveHold();
}

void Uplink::OnRead(Stripe& stripe, bool) {
  bool release = false;
  {
    absl::MutexLock lock(&mutex_);
    stripe.open = false;
    stripe.closed = true;
    release = !stripe.writing;
  }
  if (release) stripe.RemoveHold();
}

void Uplink::OnDone(Stripe& stripe, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  stripe.result = stripe.stalled && !status.ok()
                      ? absl::UnavailableError("nothing moved for too long")
                      : status;
  stripe.ended = true;
  stripe.transfer().news = true;
}

void Uplink::NoteBlocked() {
  const bool writing =
      std::ranges::any_of(lanes_, [](const LaneState& lane) { return lane.writer != nullptr; });
  const bool blocked =
      !writing && std::ranges::any_of(transfers_, [this](const Transfer* transfer)
                                                      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                                                        return Waiting(*transfer);
                                                      });
  if (blocked == blocked_since_.has_value()) return;
  const absl::Duration now = clock_->Monotonic();
  if (blocked) {
    blocked_since_ = now;
  } else {
    link_->meter().AddBlocked(now - *blocked_since_);
    blocked_since_.reset();
  }
}

}  // namespace causeway::worker
