#include "common/transfer/lane_client.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway {
namespace {

constexpr absl::Duration kShortestWait = absl::Milliseconds(1);

// Before the next try, after so many failures in a row, 1 or more.
absl::Duration BackOff(int failures) {
  return std::min(absl::Milliseconds(200) * (int64_t{1} << std::min(failures - 1, 10)),
                  absl::Seconds(5));
}

absl::Status ClientCancelled() { return absl::CancelledError("the exchange was cancelled"); }

LanePeer::Options PeerOptions(const LaneClient::Options& options) {
  return {.clock = options.clock,
          .run_long = options.run_long,
          .sender = {.max_bytes_per_second = options.max_upload_bytes_per_second,
                     .repeats_introductions = true},
          .greeting = options.greeting};
}

}  // namespace

// Guarded by the client's mutex.
class LaneClient::Transfer {
 public:
  std::optional<Offered> offered;
  std::optional<Wanted> wanted;
  uint64_t number = 0;                      // 0: it pauses, or has ended.
  bool said = false;                        // The want, since a lane broke last.
  std::shared_ptr<ChunkAssembly> assembly;  // Holds what came, in whatever try.
  v1::PullHeader announced;                 // Describes the assembly's object.
  bool flows = false;                       // The observer was told.
  int failures = 0;
  int damaged = 0;
  int64_t held_before = 0;  // Chunks, when it failed last.
  absl::Duration not_before;
  bool ended = false;
  Result result;
};

LaneClient::LaneClient(Options options)
    : LanePeer(PeerOptions(options)), own_(std::move(options)) {}

LaneClient::Handle LaneClient::Offer(Offered offered) {
  auto transfer = std::make_shared<Transfer>();
  transfer->offered = std::move(offered);
  return Add(std::move(transfer));
}

LaneClient::Handle LaneClient::Want(Wanted wanted) {
  auto transfer = std::make_shared<Transfer>();
  transfer->wanted = std::move(wanted);
  return Add(std::move(transfer));
}

LaneClient::Handle LaneClient::Add(Handle transfer) {
  bool cancelled = false;
  {
    absl::MutexLock lock(&client_mutex_);
    cancelled = cancelled_;
    transfer->flows = transfer->offered.has_value() && !cancelled;
  }
  if (cancelled) {
    End(transfer, {.status = ClientCancelled()});
    return transfer;
  }
  if (transfer->offered.has_value()) own_.observer->OnFlow(true);
  Begin(transfer);
  return transfer;
}

LaneClient::Handle LaneClient::Find(uint64_t number) {
  absl::MutexLock lock(&client_mutex_);
  const auto found = transfers_.find(number);
  return found == transfers_.end() ? nullptr : found->second;
}

void LaneClient::Begin(const Handle& transfer) {
  uint64_t number = 0;
  {
    absl::MutexLock lock(&client_mutex_);
    if (transfer->ended || cancelled_) return;
    number = ++last_number_;
    transfer->number = number;
    transfer->said = false;
    transfers_[number] = transfer;
  }
  if (transfer->wanted.has_value()) return SayWant(*transfer);
  const Offered& offered = *transfer->offered;
  v1::LaneControl introduction;
  v1::Offer& offer = *introduction.mutable_offer();
  offer.set_transfer(number);
  *offer.mutable_header() = offered.header;
  offer.mutable_header()->set_incarnation(own_.incarnation());
  offer.mutable_header()->set_attempt(static_cast<uint32_t>(transfer->failures) + 1);
  Send(number, offered.source, offered.due_step, ChunkSet(offered.source->object_bytes()),
       offered.maybe_held || transfer->failures > 0, std::move(introduction));
  if (Find(number) == nullptr) StopSending(number);  // It was given up meanwhile.
}

void LaneClient::SayWant(Transfer& transfer) {
  v1::LaneControl message;
  {
    absl::MutexLock lock(&client_mutex_);
    if (transfer.ended || transfer.number == 0 || transfer.said) return;
    v1::Want& want = *message.mutable_want();
    want = transfer.wanted->want;
    want.set_transfer(transfer.number);
    if (transfer.assembly != nullptr) {
      want.set_held_chunks(transfer.assembly->held().ToWire());
      want.set_round(transfer.announced.round());
    }
    transfer.said = true;
  }
  if (Say(std::move(message))) return;
  absl::MutexLock lock(&client_mutex_);
  transfer.said = false;  // Once a lane is open.
}

void LaneClient::SayDrop(uint64_t number, LanePtr lane) {
  v1::LaneControl drop;
  drop.mutable_drop()->set_transfer(number);
  Say(std::move(drop), std::move(lane));
}

absl::Status LaneClient::OnControl(const LanePtr& lane, v1::LaneControl& message) {
  switch (message.message_case()) {
    case v1::LaneControl::kHolding: {
      const v1::Holding& holding = message.holding();
      ASSIGN_OR_RETURN(const int64_t held,
                       Hold(holding.transfer(), holding.held_chunks(), holding.holder()));
      bool resumes = false;
      const Handle transfer = Find(holding.transfer());
      if (transfer != nullptr && transfer->offered.has_value() && held > 0) {
        absl::MutexLock lock(&client_mutex_);
        resumes = transfer->failures > 0 || transfer->offered->maybe_held;
        if (held > transfer->held_before) transfer->damaged = 0;
        transfer->held_before = held;
      }
      if (resumes) own_.observer->OnResume();
      return absl::OkStatus();
    }
    case v1::LaneControl::kAnnouncement:
      return OnAnnouncement(lane, message.announcement());
    case v1::LaneControl::kOutcome:
      OnOutcome(message.outcome());
      return absl::OkStatus();
    default:
      return absl::InternalError("the coordinator says what only a worker may");
  }
}

absl::Status LaneClient::OnAnnouncement(const LanePtr& lane, const v1::Announcement& message) {
  const uint64_t number = message.transfer();
  const v1::PullHeader& header = message.header();
  const Handle transfer = Find(number);
  if (transfer == nullptr || !transfer->wanted.has_value()) {
    SayDrop(number, lane);
    return absl::OkStatus();
  }
  const int64_t expected = transfer->wanted->expected_bytes;
  if (header.total_bytes() != expected) {
    Fail(transfer,
         absl::DataLossError(absl::StrCat("fragment ", transfer->wanted->want.fragment(), " has ",
                                          header.total_bytes(), " bytes; expected ", expected)));
    return absl::OkStatus();
  }
  bool flows = false;
  bool moved_on = false;
  std::shared_ptr<ChunkAssembly> assembly;
  {
    absl::MutexLock lock(&client_mutex_);
    if (transfer->number != number) return absl::OkStatus();
    if (transfer->assembly != nullptr &&
        (transfer->announced.object_hash() != header.object_hash() ||
         transfer->announced.round() != header.round())) {
      transfer->assembly = nullptr;
      moved_on = true;
    } else {
      if (transfer->assembly == nullptr) {
        transfer->assembly = std::make_shared<ChunkAssembly>(expected);
        transfer->announced = header;
      }
      assembly = transfer->assembly;
      flows = !std::exchange(transfer->flows, true);
    }
  }
  if (moved_on) {
    Fail(transfer, absl::UnavailableError("the object changed while it was pulled"));
    return absl::OkStatus();
  }
  if (flows) own_.observer->OnFlow(false);
  Expect(number, assembly);
  if (Find(number) == nullptr) StopExpecting(number);  // It ended meanwhile.
  const ChunkSet held = assembly->held();
  // All of it may have come before, with a lane that broke before it was acknowledged.
  if (held.complete()) OnWhole(number, assembly);
  SayHolding(number, held, /*holder=*/0, lane);
  return absl::OkStatus();
}

void LaneClient::OnOutcome(const v1::Outcome& message) {
  const Handle transfer = Find(message.transfer());
  if (transfer == nullptr) return;
  const absl::Status status(static_cast<absl::StatusCode>(message.code()), message.message());
  if (!status.ok()) return Fail(transfer, status);
  if (!transfer->offered.has_value()) return;
  const int64_t total = transfer->offered->header.total_bytes();
  if (message.accepted().durable_bytes() != total) {
    return End(transfer,
               {.status = absl::InternalError(absl::StrCat(
                    "the coordinator acknowledges ", message.accepted().durable_bytes(),
                    " bytes of an object of ", total, ": it has not kept what was sent"))});
  }
  End(transfer, {.status = absl::OkStatus(), .accepted = message.accepted()});
}

void LaneClient::OnWhole(uint64_t number, const std::shared_ptr<ChunkAssembly>& object) {
  const Handle transfer = Find(number);
  if (transfer == nullptr) return;
  Result end = {.status =
                    absl::DataLossError("the object does not hash to what its header announced")};
  {
    absl::MutexLock lock(&client_mutex_);
    if (transfer->assembly != object) return;
    const v1::PullHeader& header = transfer->announced;
    if (object->tree_hash() == header.object_hash()) {
      end = {.status = absl::OkStatus(), .header = header, .bytes = object->bytes()};
    } else {
      transfer->assembly = nullptr;
    }
  }
  if (end.status.ok()) return End(transfer, std::move(end));
  SayDrop(number);
  Fail(transfer, end.status);
}

void LaneClient::OnDamaged(uint64_t number) {
  const Handle transfer = Find(number);
  if (transfer == nullptr) return;
  End(transfer, {.status = absl::DataLossError(
                     "the coordinator gets a chunk of the object damaged again and again")});
}

void LaneClient::OnChunk(uint64_t, bool sent, int64_t bytes, bool again) {
  own_.observer->OnChunk(sent, bytes, again);
}

void LaneClient::OnBlocked(bool blocked) { own_.observer->OnBlocked(blocked); }

void LaneClient::OnClosed(int number, const absl::Status& why, bool spoke, int64_t chunks_left) {
  std::vector<Handle> all;
  bool first = false;
  const bool passes = why.ok() || own_.passes(why) || own_.lane_passes(why);
  {
    absl::MutexLock lock(&client_mutex_);
    Tries& tries = tries_[static_cast<size_t>(number)];
    tries.open = false;
    tries.failures = spoke ? 1 : tries.failures + 1;
    first = tries.failures == 1;
    tries.not_before = clock().Monotonic() + BackOff(tries.failures);
    for (const auto& [key, transfer] : transfers_) {
      transfer->said = false;
      all.push_back(transfer);
    }
    if (!passes) all.insert(all.end(), paused_.begin(), paused_.end());
    ++news_;
    if (cancelled_) return;
  }
  if (chunks_left > 0) own_.observer->OnResume();
  if (first && !all.empty()) own_.observer->OnTrouble(absl::StrCat("lane ", number), why);
  for (const Handle& transfer : all) {
    if (!passes) {
      End(transfer, {.status = why});
    } else if (transfer->wanted.has_value()) {
      SayWant(*transfer);
    }
  }
}

void LaneClient::StopCurrent(Transfer& transfer) {
  uint64_t number = 0;
  {
    absl::MutexLock lock(&client_mutex_);
    number = std::exchange(transfer.number, 0);
    transfers_.erase(number);
  }
  StopSending(number);
  StopExpecting(number);
}

void LaneClient::Fail(const Handle& transfer, const absl::Status& status) {
  StopCurrent(*transfer);
  bool again = own_.passes(status);
  const bool sends = transfer->offered.has_value();
  const int fragment =
      sends ? transfer->offered->header.fragment() : transfer->wanted->want.fragment();
  const int64_t round = sends ? transfer->offered->header.round() : transfer->wanted->want.round();
  {
    absl::MutexLock lock(&client_mutex_);
    if (transfer->ended || cancelled_) return;
    if (absl::IsDataLoss(status)) {
      again = ++transfer->damaged < kMaxDamaged;
    } else if (transfer->assembly != nullptr && transfer->wanted.has_value() &&
               transfer->wanted->want.object() == v1::Want::STATE &&
               (absl::IsNotFound(status) || absl::IsFailedPrecondition(status))) {
      transfer->assembly = nullptr;  // It moved on to another version.
      again = true;
    }
    if (again) {
      transfer->not_before = clock().Monotonic() + BackOff(++transfer->failures);
      paused_.push_back(transfer);
      ++news_;
    }
  }
  if (!again) return End(transfer, {.status = status});
  own_.observer->OnTrouble(
      absl::StrCat(sends ? "the delta of fragment " : "what is wanted of fragment ", fragment,
                   ", round ", round),
      status);
}

void LaneClient::End(const Handle& transfer, Result result) {
  StopCurrent(*transfer);
  const bool whole = result.status.ok();
  bool flowed = false;
  {
    absl::MutexLock lock(&client_mutex_);
    if (transfer->ended) return;
    std::erase(paused_, transfer);
    flowed = transfer->flows;
  }
  // Before anybody hears of the end: who asks then finds it counted.
  if (flowed) own_.observer->OnEnd(transfer->offered.has_value(), whole);
  absl::MutexLock lock(&client_mutex_);
  transfer->result = std::move(result);
  transfer->ended = true;
  transfer->assembly = nullptr;
  ++news_;
}

bool LaneClient::Done(const Handle& handle) const {
  absl::MutexLock lock(&client_mutex_);
  return handle->ended;
}

void LaneClient::GiveUp(const Handle& handle) {
  uint64_t number = 0;
  {
    absl::MutexLock lock(&client_mutex_);
    number = handle->number;
  }
  if (number != 0) SayDrop(number);
  End(handle, {.status = ClientCancelled()});
}

void LaneClient::Cancel() {
  std::vector<Handle> all;
  {
    absl::MutexLock lock(&client_mutex_);
    cancelled_ = true;
    all = paused_;
    for (const auto& [number, transfer] : transfers_) all.push_back(transfer);
  }
  for (const Handle& transfer : all) End(transfer, {.status = ClientCancelled()});
  EndAll(ClientCancelled());
}

void LaneClient::Tick() {
  EndStalled(own_.stall());
  std::vector<int> dial;
  std::vector<Handle> begin;
  std::vector<Handle> say;
  {
    absl::MutexLock lock(&client_mutex_);
    if (cancelled_) return;
    const absl::Duration now = clock().Monotonic();
    const size_t lanes = std::max<size_t>(tries_.size(), static_cast<size_t>(own_.lanes()));
    tries_.resize(lanes);
    for (size_t i = 0; i < static_cast<size_t>(own_.lanes()); ++i) {
      Tries& tries = tries_[i];
      const bool needed = !transfers_.empty() || !paused_.empty();
      if (tries.open || !needed || now < tries.not_before) continue;
      tries.open = true;
      dial.push_back(static_cast<int>(i));
    }
    std::erase_if(paused_, [&](const Handle& transfer) {
      if (transfer->not_before > now) return false;
      begin.push_back(transfer);
      return true;
    });
  }
  for (const int lane : dial) own_.dial(lane, shared_from_this());
  bool cancelled = false;
  {
    absl::MutexLock lock(&client_mutex_);
    cancelled = cancelled_;
  }
  // Cancel has not seen lanes that were dialed meanwhile.
  if (cancelled) return EndAll(ClientCancelled());
  for (const Handle& transfer : begin) Begin(transfer);
  {
    absl::MutexLock lock(&client_mutex_);
    for (const auto& [number, transfer] : transfers_) {
      if (transfer->wanted.has_value() && !transfer->said) say.push_back(transfer);
    }
  }
  for (const Handle& transfer : say) SayWant(*transfer);
  PumpAll();
}

absl::Duration LaneClient::UntilNext() {
  const absl::Duration now = clock().Monotonic();
  absl::Duration wait = own_.poll;
  for (const Tries& tries : tries_) {
    if (!tries.open) wait = std::min(wait, tries.not_before - now);
  }
  for (const Handle& transfer : paused_) wait = std::min(wait, transfer->not_before - now);
  return wait;
}

bool LaneClient::AwaitAWhile(const Handle& handle) {
  Tick();
  const absl::Duration rate = UntilRate();
  absl::MutexLock lock(&client_mutex_);
  absl::Duration wait = UntilNext();
  if (rate > absl::ZeroDuration()) wait = std::min(wait, rate);
  const int64_t before = news_;
  const auto news = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(client_mutex_) {
    return handle->ended || news_ != before;
  };
  client_mutex_.AwaitWithTimeout(absl::Condition(&news), std::max(wait, kShortestWait));
  return handle->ended;
}

LaneClient::Result LaneClient::Await(const Handle& handle) {
  while (!AwaitAWhile(handle)) {
  }
  absl::MutexLock lock(&client_mutex_);
  return std::move(handle->result);
}

}  // namespace causeway
