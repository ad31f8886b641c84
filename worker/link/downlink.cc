#include "worker/link/downlink.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/status_macros.h"
#include "common/rpc/chunk_buffer.h"
#include "common/rpc/status.h"
#include "common/telemetry/log.h"
#include "worker/link/retry.h"

namespace causeway::worker {
namespace {

constexpr char kPullMethod[] = "/causeway.v1.Exchange/Pull";
constexpr absl::Duration kShortestWait = absl::Milliseconds(1);

// Of two errors, the one that says more about what to do.
int Gravity(const absl::Status& status) {
  if (status.ok()) return 0;
  if (IsRetryable(status)) return 1;
  return absl::IsDataLoss(status) ? 2 : 3;
}

}  // namespace

// One Pull stream. It is made, started and destroyed by the thread of its transfer.
class Downlink::Stripe final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Stripe(Downlink* downlink, Transfer* transfer, int lane)
      : downlink_(downlink), transfer_(transfer), lane_(lane) {}

  void Start(Lane& lane, const v1::PullRequest& request) {
    outgoing_ = MessageToBuffer(request);
    lane.generic_stub().PrepareBidiStreamingCall(&context_, kPullMethod, {}, this);
    StartRead(&incoming_);
    StartWriteLast(&outgoing_, grpc::WriteOptions());
    StartCall();
  }
  // Any thread.
  void Cancel() { context_.TryCancel(); }

  Transfer& transfer() const { return *transfer_; }
  int lane() const { return lane_; }
  const grpc::ByteBuffer& incoming() const { return incoming_; }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    const bool go_on = downlink_->OnRead(*this);
    incoming_.Clear();
    if (go_on) {
      StartRead(&incoming_);
    } else {
      Cancel();
    }
  }
  void OnDone(const grpc::Status& end) override { downlink_->OnDone(*this, FromGrpcStatus(end)); }

  bool has_header = false;  // Touched by OnRead alone.

  // Guarded by the downlink's mutex.
  absl::Duration opened;
  bool stalled = false;
  bool ended = false;  // gRPC is done with it.
  int64_t chunks = 0;
  absl::Status problem;  // Of what it brought.
  absl::Status result;   // How it ended.

 private:
  Downlink* const downlink_;
  Transfer* const transfer_;
  const int lane_;
  grpc::ClientContext context_;
  grpc::ByteBuffer outgoing_;
  grpc::ByteBuffer incoming_;
};

struct Downlink::Transfer {
  Transfer(v1::PullRequest request, int64_t expected_bytes, int lanes, Ticket& its_ticket)
      : receiver(std::move(request), expected_bytes),
        ticket(its_ticket),
        stripes(static_cast<size_t>(lanes)),
        tries(static_cast<size_t>(lanes)) {}

  PullReceiver receiver;
  Ticket& ticket;

  // Guarded by the downlink's mutex.
  std::vector<std::unique_ptr<Stripe>> stripes;  // By lane; null: not open.
  struct Tries {
    int failures = 0;  // In a row.
    absl::Duration not_before = -absl::InfiniteDuration();
  };
  std::vector<Tries> tries;  // By lane.
  bool news = false;         // For the thread of the Pull.
  int stalls = 0;
  // Of the present group.
  bool flowing = false;  // A header came.
  absl::Duration flowing_since;
  bool dealt = false;  // A stream ended well, or all are to end: there is no use in another.
  absl::Status status;
};

Downlink::Downlink(Link* link)
    : link_(link),
      clock_(link->options().clock),
      moved_(kMaxConnections, -absl::InfiniteDuration()) {}

Downlink::~Downlink() = default;

void Downlink::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  for (Transfer* const transfer : transfers_) {
    transfer->news = true;
    for (const std::unique_ptr<Stripe>& stripe : transfer->stripes) {
      if (stripe != nullptr) stripe->Cancel();
    }
  }
}

void Downlink::GiveUp(Ticket& ticket) {
  absl::MutexLock lock(&mutex_);
  ticket.given_up_ = true;
  for (Transfer* const transfer : transfers_) {
    if (&transfer->ticket != &ticket) continue;
    transfer->news = true;
    for (const std::unique_ptr<Stripe>& stripe : transfer->stripes) {
      if (stripe != nullptr) stripe->Cancel();
    }
  }
}

bool Downlink::Cancelled(const Transfer& transfer) const {
  return cancelled_ || transfer.ticket.given_up_;
}

bool Downlink::Pause(const Transfer& transfer, int failures) {
  absl::MutexLock lock(&mutex_);
  const auto cancelled = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return Cancelled(transfer); };
  return !mutex_.AwaitWithTimeout(absl::Condition(&cancelled), BackOff(failures));
}

absl::StatusOr<PulledObject> Downlink::Pull(v1::PullRequest request, int64_t expected_bytes,
                                            Ticket& ticket) {
  request.set_max_bytes_per_second(link_->options().max_download_bytes_per_second);
  Transfer transfer(std::move(request), expected_bytes, link_->connections(Direction::kDown),
                    ticket);
  PullReceiver& receiver = transfer.receiver;
  int damaged = 0;
  for (int failures = 1;; ++failures) {
    const int64_t before = receiver.received_bytes();
    if (before > 0) link_->meter().AddResume();
    absl::Status status = RunGroup(transfer);
    {
      absl::MutexLock lock(&mutex_);
      if (Cancelled(transfer)) return ExchangeCancelled();
    }
    status = receiver.EndGroup(status);
    if (status.ok()) return receiver.TakeObject();
    if (receiver.received_bytes() > before) {
      failures = 1;
      damaged = 0;
    }
    damaged += absl::IsDataLoss(status);
    const bool again = IsRetryable(status) || (absl::IsDataLoss(status) && damaged < kMaxDamaged);
    if (!again) return status;
    Log().warn("pull of fragment {} round {} failed at {} of {} bytes, trying again: {}",
               receiver.request().fragment(), receiver.request().round(), receiver.received_bytes(),
               expected_bytes, std::string(status.message()));
    if (!Pause(transfer, failures)) return ExchangeCancelled();
  }
}

absl::Status Downlink::RunGroup(Transfer& transfer) {
  {
    absl::MutexLock lock(&mutex_);
    if (Cancelled(transfer)) return ExchangeCancelled();
    transfers_.push_back(&transfer);
    transfer.receiver.BeginGroup(uint64_t{random_()} << 32 | random_() | 1);
    transfer.tries.assign(transfer.tries.size(), {});
    transfer.flowing = false;
    transfer.dealt = false;
    transfer.status = absl::OkStatus();
  }
  do {
    OpenStripes(transfer);
    CancelStalled(transfer);
    link_->Refresh();
    Wait(transfer);
  } while (!Collect(transfer));
  bool flowing = false;
  {
    absl::MutexLock lock(&mutex_);
    std::erase(transfers_, &transfer);
    flowing = transfer.flowing;
  }
  if (flowing) link_->EndObject(Direction::kDown, transfer.receiver.complete());
  return transfer.status;
}

void Downlink::OpenStripes(Transfer& transfer) {
  for (size_t lane = 0; lane < transfer.stripes.size(); ++lane) {
    Lane& over = link_->lane(static_cast<int>(lane));
    Stripe* stripe = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      std::unique_ptr<Stripe>& slot = transfer.stripes[lane];
      const absl::Duration now = clock_->Monotonic();
      const bool due = now >= transfer.tries[lane].not_before;
      if (Cancelled(transfer) || transfer.dealt || slot != nullptr || !due) continue;
      slot = std::make_unique<Stripe>(this, &transfer, static_cast<int>(lane));
      stripe = slot.get();
      stripe->opened = now;
    }
    stripe->Start(over, transfer.receiver.Request());
  }
}

bool Downlink::Collect(Transfer& transfer) {
  // Destroyed here, and not on gRPC's threads, which must not be the last to let go of a channel.
  std::vector<std::unique_ptr<Stripe>> ended;
  const bool complete = transfer.receiver.complete();
  absl::MutexLock lock(&mutex_);
  for (std::unique_ptr<Stripe>& stripe : transfer.stripes) {
    if (stripe == nullptr || !stripe->ended) continue;
    const absl::Status& status = stripe->problem.ok() ? stripe->result : stripe->problem;
    if (Gravity(status) > Gravity(transfer.status)) transfer.status = status;
    transfer.dealt |= status.ok() || Gravity(status) > 2;
    transfer.stalls += stripe->stalled;
    Transfer::Tries& tries = transfer.tries[static_cast<size_t>(stripe->lane())];
    tries.failures = stripe->chunks > 0 ? 1 : tries.failures + 1;
    tries.not_before = clock_->Monotonic() + BackOff(tries.failures);
    ended.push_back(std::move(stripe));
  }
  const bool cancelled = Cancelled(transfer);
  transfer.dealt |= complete || cancelled;
  bool open = false;
  for (const std::unique_ptr<Stripe>& stripe : transfer.stripes) {
    if (stripe == nullptr) continue;
    open = true;
    // Whole without them, or refused: nothing that is still to come is of use.
    if (complete || cancelled || Gravity(transfer.status) > 2) stripe->Cancel();
  }
  return !open;
}

void Downlink::CancelStalled(Transfer& transfer) {
  const absl::Duration limit = link_->stall_limit(Direction::kDown);
  absl::MutexLock lock(&mutex_);
  if (!transfer.flowing) return;
  const absl::Duration now = clock_->Monotonic();
  for (const std::unique_ptr<Stripe>& stripe : transfer.stripes) {
    if (stripe == nullptr || stripe->stalled || stripe->ended) continue;
    const absl::Duration moved = std::max(
        {stripe->opened, transfer.flowing_since, moved_[static_cast<size_t>(stripe->lane())]});
    if (now - moved <= Patience(limit, transfer.stalls)) continue;
    stripe->stalled = true;
    stripe->Cancel();
  }
}

void Downlink::Wait(Transfer& transfer) {
  absl::MutexLock lock(&mutex_);
  const absl::Duration now = clock_->Monotonic();
  absl::Duration timeout = link_->options().poll;
  for (size_t lane = 0; lane < transfer.stripes.size() && !transfer.dealt; ++lane) {
    if (transfer.stripes[lane] != nullptr) continue;
    timeout = std::min(timeout, transfer.tries[lane].not_before - now);
  }
  mutex_.AwaitWithTimeout(absl::Condition(&transfer.news), std::max(timeout, kShortestWait));
  transfer.news = false;
}

bool Downlink::OnRead(Stripe& stripe) {
  Transfer& transfer = stripe.transfer();
  const absl::StatusOr<PullReceiver::Received> received =
      transfer.receiver.Receive(BufferMessage(stripe.incoming()), stripe.has_header);
  if (received.ok() && received->again) link_->meter().AddResent(1);
  const bool complete = transfer.receiver.complete();
  absl::MutexLock lock(&mutex_);
  const absl::Duration now = clock_->Monotonic();
  moved_[static_cast<size_t>(stripe.lane())] = now;
  transfer.news |= complete;
  if (!received.ok()) {
    stripe.problem = received.status();
    return false;
  }
  if (!transfer.flowing) {
    transfer.flowing = true;
    transfer.flowing_since = now;
    link_->meter().Begin(Direction::kDown);
  }
  stripe.chunks += !received->header;
  link_->meter().Add(Direction::kDown, received->data_bytes);
  return true;
}

void Downlink::OnDone(Stripe& stripe, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  stripe.result = stripe.stalled && !status.ok()
                      ? absl::UnavailableError("nothing moved for too long")
                      : status;
  stripe.ended = true;
  stripe.transfer().news = true;
}

}  // namespace causeway::worker
