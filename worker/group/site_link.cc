#include "worker/group/site_link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway::worker {
namespace {

constexpr uint32_t kFrameMagic = 0x43577334;
enum Kind : uint32_t { kCall = 1, kAnswer = 2, kCause = 3, kLeave = 4, kSign = 5 };
constexpr char kOfPeer[] = "causeway/of-peer";
constexpr uint64_t kMostBytes = uint64_t{1} << 40;

// How soon a host that is off the network is noticed, in seconds.
constexpr int kIdleSeconds = 10;
constexpr int kProbeSeconds = 5;
constexpr int kProbes = 4;
constexpr int kUnacknowledgedMs = 30000;

void SetOption(int socket, int level, int name, int value) {
  // What a socket does not know does not matter: it is one that tests made.
  (void)setsockopt(socket, level, name, &value, sizeof(value));
}

// After so long a call of the socket that does not get on comes back.
void SetPatience(int socket, int name, absl::Duration patience) {
  const timeval value = absl::ToTimeval(patience);
  (void)setsockopt(socket, SOL_SOCKET, name, &value, sizeof(value));
}

bool TimedOut() { return errno == EAGAIN || errno == EWOULDBLOCK; }

absl::Status Lost(absl::string_view peer, absl::string_view what) {
  return absl::UnavailableError(
      absl::StrCat("the connection to ", peer, " is lost (", what, "): has it ended?"));
}

}  // namespace

struct SiteLink::Frame {
  uint32_t magic = kFrameMagic;
  uint32_t kind = 0;
  uint64_t id = 0;
  int64_t argument = 0;
  double number = 0;
  uint64_t bytes = 0;
  int32_t method = 0;  // Of an answer: the status's code.
  int32_t unused = 0;
};

SiteLink::SiteLink(int socket, std::string peer, std::shared_ptr<SharedCause> cause,
                   const Patience& patience)
    : socket_(socket), peer_(std::move(peer)), cause_(std::move(cause)), patience_(patience) {
  SetOption(socket_, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(socket_, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(socket_, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  SetOption(socket_, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  SetOption(socket_, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  SetOption(socket_, IPPROTO_TCP, TCP_USER_TIMEOUT, kUnacknowledgedMs);
  SetPatience(socket_, SO_RCVTIMEO, patience_.sign_interval);
  SetPatience(socket_, SO_SNDTIMEO, patience_.sign_interval);
}

SiteLink::~SiteLink() {
  if (receiver_.joinable()) {
    cause_->Remove(listener_);
    if (cause_->Get().ok()) {
      Frame frame;
      frame.kind = kLeave;
      Send(frame, {}).IgnoreError();  // The peer may have left before.
    }
    {
      absl::MutexLock lock(&mutex_);
      failed_ = true;  // What the receiver finds from now on is no cause.
    }
    (void)shutdown(socket_, SHUT_RDWR);
    sign_giver_.join();
    receiver_.join();
  }
  (void)close(socket_);
}

void SiteLink::Start(std::function<bool(SiteCall&)> handle) {
  handle_ = std::move(handle);
  receiver_ = std::thread([this] { ReceiveAll(); });
  sign_giver_ = std::thread([this] { GiveSigns(); });
  listener_ = cause_->Listen([this](const absl::Status& cause) { Fail(cause); });
}

// What else this process does need not come to an end for it.
void SiteLink::GiveSigns() {
  const auto over = [this]()
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return peer_left_ || failed_; };
  Frame frame;
  frame.kind = kSign;
  do {
    Send(frame, {}).IgnoreError();  // The receiver finds out what there is to say.
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&over), patience_.sign_interval)) return;
  } while (true);
}

// Tells the peer and wakes everyone.
void SiteLink::Fail(const absl::Status& cause) {
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(failed_, true)) return;
  }
  Frame frame;
  frame.kind = kCause;
  const absl::string_view message = cause.message();
  Send(frame, {reinterpret_cast<const uint8_t*>(message.data()), message.size()}).IgnoreError();
  (void)shutdown(socket_, SHUT_WR);
}

absl::Status SiteLink::Send(const Frame& frame, std::span<const uint8_t> bytes) {
  Frame head = frame;
  head.bytes = bytes.size();
  absl::MutexLock lock(&send_mutex_);
  if (cut_off_) return Lost(peer_, "a message to it was cut off");
  for (std::span<const uint8_t> part :
       {std::span(reinterpret_cast<const uint8_t*>(&head), sizeof(head)), bytes}) {
    while (!part.empty()) {
      const ssize_t sent = send(socket_, part.data(), part.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      // It does not read; that it says nothing, either, is for the receiver to find.
      if (sent < 0 && TimedOut() && cause_->Get().ok()) continue;
      if (sent < 0) {
        // What followed would be taken for the rest.
        cut_off_ = true;
        return Lost(peer_, std::strerror(errno));
      }
      part = part.subspan(static_cast<size_t>(sent));
    }
  }
  return absl::OkStatus();
}

absl::Status SiteLink::Receive(Frame& frame, ByteBuffer& bytes) {
  const auto read = [&](void* to, size_t size) -> absl::Status {
    auto* at = static_cast<uint8_t*>(to);
    int missed_signs = 0;
    while (size > 0) {
      const ssize_t received = recv(socket_, at, size, 0);
      if (received < 0 && errno == EINTR) continue;
      if (received < 0 && TimedOut()) {
        const absl::Duration silence = ++missed_signs * patience_.sign_interval;
        if (silence <
            (heard_ ? kMostMissedSigns * patience_.sign_interval : patience_.first_sign)) {
          continue;
        }
        return Lost(peer_, absl::StrCat("nothing came for ", absl::FormatDuration(silence),
                                        ", is it stopped?"));
      }
      if (received < 0) return Lost(peer_, std::strerror(errno));
      if (received == 0) return Lost(peer_, "it was closed");
      heard_ = true;
      missed_signs = 0;
      at += received;
      size -= static_cast<size_t>(received);
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(read(&frame, sizeof(frame)));
  if (frame.magic != kFrameMagic || frame.bytes > kMostBytes) {
    return absl::DataLossError(absl::StrCat(peer_, " sends what is no message of a site"));
  }
  try {
    bytes.resize(frame.bytes);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat("there is no memory for the ", frame.bytes,
                                                     " bytes that ", peer_, " sends at once"));
  }
  return read(bytes.data(), bytes.size());
}

void SiteLink::ReceiveAll() {
  for (;;) {
    Frame frame;
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
      return;
    }
    switch (frame.kind) {
      case kCall: {
        SiteCall call{.id = frame.id,
                      .method = frame.method,
                      .argument = frame.argument,
                      .number = frame.number,
                      .bytes = std::move(bytes)};
        if (handle_ && handle_(call)) break;
        absl::MutexLock lock(&mutex_);
        calls_.push_back(std::move(call));
        break;
      }
      case kAnswer: {
        absl::Status status;
        if (frame.method != 0) {
          status = absl::Status(
              static_cast<absl::StatusCode>(frame.method),
              absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
        }
        absl::MutexLock lock(&mutex_);
        answers_[frame.id] = {std::move(status), std::move(bytes)};
        break;
      }
      case kSign:
        break;
      case kCause:
        cause_->Set(absl::AbortedError(
            absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())));
        break;
      default: {
        absl::MutexLock lock(&mutex_);
        peer_left_ = true;
      }
    }
  }
}

absl::StatusOr<uint64_t> SiteLink::Call(int method, int64_t argument, double number,
                                        std::span<const uint8_t> bytes) {
  RETURN_IF_ERROR(cause_->Get());
  Frame frame;
  {
    absl::MutexLock lock(&mutex_);
    frame.id = next_id_++;
  }
  frame.kind = kCall;
  frame.method = method;
  frame.argument = argument;
  frame.number = number;
  if (const absl::Status sent = Send(frame, bytes); !sent.ok()) {
    cause_->Set(sent);
    return cause_->Get();
  }
  return frame.id;
}

absl::StatusOr<ByteBuffer> SiteLink::Await(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return answers_.contains(id) || peer_left_ || failed_;
  };
  mutex_.Await(absl::Condition(&there));
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
  Frame frame;
  frame.kind = kAnswer;
  frame.id = id;
  frame.method = static_cast<int32_t>(status.code());
  const absl::string_view message = status.message();
  if (!status.ok()) bytes = {reinterpret_cast<const uint8_t*>(message.data()), message.size()};
  const absl::Status sent = Send(frame, bytes);
  if (!sent.ok()) cause_->Set(sent);
  return sent.ok() ? cause_->Get() : sent;
}

absl::Status OfPeer(const SiteLink& link, const absl::Status& status) {
  absl::Status annotated = Annotate(status, link.peer());
  if (!annotated.ok()) annotated.SetPayload(kOfPeer, absl::Cord(link.peer()));
  return annotated;
}

bool IsOfPeer(const absl::Status& status) { return status.GetPayload(kOfPeer).has_value(); }

}  // namespace causeway::worker
