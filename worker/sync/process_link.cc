#include "worker/sync/process_link.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway::worker {
namespace {

constexpr char kOfPeer[] = "causeway/of-peer";
constexpr uint64_t kMostBytes = uint64_t{1} << 40;
constexpr size_t kFrameBytes = size_t{1} << 20;
// For the peer to close its half, when this side leaves.
constexpr absl::Duration kFarewell = absl::Seconds(5);

absl::Status Lost(absl::string_view peer, absl::string_view what) {
  return absl::UnavailableError(
      absl::StrCat("the connection to ", peer, " is lost (", what, "): has it ended?"));
}

v1::SiteFrame FrameOf(v1::SiteFrame::Kind kind) {
  v1::SiteFrame frame;
  frame.set_kind(kind);
  return frame;
}

}  // namespace

SiteLink::SiteLink(std::shared_ptr<SiteStream> stream, std::string peer,
                   std::shared_ptr<SharedCause> cause)
    : stream_(std::move(stream)), peer_(std::move(peer)), cause_(std::move(cause)) {}

SiteLink::~SiteLink() {
  if (!receiver_.joinable()) return;
  Leave();
  {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&received_all_), kFarewell);
  }
  stream_->Cut();
  receiver_.join();
}

void SiteLink::Leave() {
  cause_->Remove(listener_);
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(left_, true)) return;
    failed_ = true;  // An error that the receiver finds from now on is no cause.
  }
  // The peer may have left before.
  if (cause_->Get().ok()) Send(FrameOf(v1::SiteFrame::LEAVE), {}).IgnoreError();
  CloseWrites();
}

void SiteLink::Start(std::function<bool(SiteCall&)> handle) {
  handle_ = std::move(handle);
  receiver_ = std::thread([this] { ReceiveAll(); });
  listener_ = cause_->Listen([this](const absl::Status& cause) { Fail(cause); });
}

// Tells the peer and wakes everyone.
void SiteLink::Fail(const absl::Status& cause) {
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(failed_, true)) return;
  }
  Send(FrameOf(v1::SiteFrame::CAUSE), BytesOf(cause.message())).IgnoreError();
  CloseWrites();
}

void SiteLink::CloseWrites() {
  absl::MutexLock lock(&send_mutex_);
  if (!std::exchange(closed_, true)) stream_->CloseWrites();
}

absl::Status SiteLink::Send(v1::SiteFrame frame, std::span<const uint8_t> bytes) {
  frame.set_total_bytes(bytes.size());
  absl::MutexLock lock(&send_mutex_);
  do {
    if (closed_) return Lost(peer_, "it is closed");
    const std::span<const uint8_t> part = bytes.first(std::min(bytes.size(), kFrameBytes));
    bytes = bytes.subspan(part.size());
    frame.set_bytes(part.data(), part.size());
    if (const absl::Status sent = stream_->Write(frame); !sent.ok()) {
      closed_ = true;  // A later message would be taken for the rest.
      return Lost(peer_, sent.message());
    }
  } while (!bytes.empty());
  return absl::OkStatus();
}

absl::Status SiteLink::Receive(v1::SiteFrame& frame, ByteBuffer& bytes) {
  const auto read = [&](v1::SiteFrame& to) -> absl::Status {
    const absl::Status status = stream_->Read(to);
    ++frames_;
    return status.ok() ? status : Lost(peer_, status.message());
  };
  RETURN_IF_ERROR(read(frame));
  const uint64_t total = frame.total_bytes();
  const auto no_message = [&] {
    return absl::DataLossError(absl::StrCat(peer_, " sends what is no message of a site"));
  };
  if (total > kMostBytes) return no_message();
  try {
    bytes.resize(total);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat("there is no memory for the ", total,
                                                     " bytes that ", peer_, " sends at once"));
  }
  v1::SiteFrame next;
  const v1::SiteFrame* part = &frame;
  for (size_t got = 0;;) {
    const size_t size = part->bytes().size();
    if (part->total_bytes() != total || size > total - got || (size == 0 && total > 0)) {
      return no_message();
    }
    if (size > 0) std::memcpy(bytes.data() + got, part->bytes().data(), size);
    got += size;
    if (got == total) return absl::OkStatus();
    RETURN_IF_ERROR(read(next));
    part = &next;
  }
}

void SiteLink::ReceiveAll() {
  for (;;) {
    v1::SiteFrame frame;
    ByteBuffer bytes;
    const absl::Status received = Receive(frame, bytes);
    if (!received.ok()) {
      bool is_expected = false;
      {
        absl::MutexLock lock(&mutex_);
        is_expected = peer_left_ || failed_;
      }
      // First the cause, then what wakes those who ask for it.
      if (!is_expected) cause_->Set(received);
      absl::MutexLock lock(&mutex_);
      peer_left_ = true;
      received_all_ = true;
      return;
    }
    switch (frame.kind()) {
      case v1::SiteFrame::CALL: {
        SiteCall call{.id = frame.id(),
                      .method = frame.method(),
                      .argument = frame.argument(),
                      .number = frame.number(),
                      .bytes = std::move(bytes)};
        if (handle_ && handle_(call)) break;
        absl::MutexLock lock(&mutex_);
        calls_.push_back(std::move(call));
        break;
      }
      case v1::SiteFrame::ANSWER: {
        absl::Status status;
        if (frame.code() != 0) {
          status = absl::Status(static_cast<absl::StatusCode>(frame.code()), TextOf(bytes));
        }
        absl::MutexLock lock(&mutex_);
        answers_[frame.id()] = {std::move(status), std::move(bytes)};
        break;
      }
      case v1::SiteFrame::CAUSE:
        cause_->Set(absl::AbortedError(TextOf(bytes)));
        break;
      default: {
        {
          absl::MutexLock lock(&mutex_);
          peer_left_ = true;
        }
        CloseWrites();
      }
    }
  }
}

absl::StatusOr<uint64_t> SiteLink::Call(int method, int64_t argument, double number,
                                        std::span<const uint8_t> bytes) {
  RETURN_IF_ERROR(cause_->Get());
  v1::SiteFrame frame = FrameOf(v1::SiteFrame::CALL);
  {
    absl::MutexLock lock(&mutex_);
    frame.set_id(next_id_++);
  }
  frame.set_method(method);
  frame.set_argument(argument);
  frame.set_number(number);
  const uint64_t id = frame.id();
  if (const absl::Status sent = Send(std::move(frame), bytes); !sent.ok()) {
    cause_->Set(sent);
    return cause_->Get();
  }
  return id;
}

absl::StatusOr<ByteBuffer> SiteLink::Await(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return answers_.contains(id) || peer_left_ || failed_;
  };
  ++waiting_;
  mutex_.Await(absl::Condition(&there));
  --waiting_;
  const auto found = answers_.find(id);
  if (found == answers_.end()) {
    const absl::Status cause = cause_->Get();
    return cause.ok() ? Lost(peer_, "it left without an answer") : cause;
  }
  Answered answered = std::move(found->second);
  answers_.erase(found);
  RETURN_IF_ERROR(answered.status);
  return std::move(answered.bytes);
}

SiteLink::Waits SiteLink::waits() const {
  absl::MutexLock lock(&mutex_);
  return {.any = waiting_ > 0, .frames = frames_};
}

absl::StatusOr<ByteBuffer> SiteLink::CallAndAwait(int method, int64_t argument, double number,
                                                  std::span<const uint8_t> bytes) {
  ASSIGN_OR_RETURN(const uint64_t id, Call(method, argument, number, bytes));
  return Await(id);
}

absl::StatusOr<std::optional<SiteCall>> SiteLink::NextCall() {
  absl::MutexLock lock(&mutex_);
  const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !calls_.empty() || peer_left_ || failed_;
  };
  mutex_.Await(absl::Condition(&there));
  RETURN_IF_ERROR(cause_->Get());
  if (calls_.empty()) return std::nullopt;
  SiteCall call = std::move(calls_.front());
  calls_.pop_front();
  return call;
}

absl::Status SiteLink::Answer(uint64_t id, const absl::Status& status,
                              std::span<const uint8_t> bytes) {
  v1::SiteFrame frame = FrameOf(v1::SiteFrame::ANSWER);
  frame.set_id(id);
  frame.set_code(static_cast<int>(status.code()));
  const absl::Status sent = Send(std::move(frame), status.ok() ? bytes : BytesOf(status.message()));
  if (!sent.ok()) cause_->Set(sent);
  return cause_->Get();
}

absl::Status OfPeer(const SiteLink& link, const absl::Status& status) {
  absl::Status annotated = Annotate(status, link.peer());
  if (!annotated.ok()) annotated.SetPayload(kOfPeer, absl::Cord(link.peer()));
  return annotated;
}

bool IsOfPeer(const absl::Status& status) { return status.GetPayload(kOfPeer).has_value(); }

}  // namespace causeway::worker
