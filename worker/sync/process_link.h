// One of the connections between process 0 of a site and its others: calls that one side makes and
// the other answers, and the cause that ends all of them.
//
// A stream that is lost, and a peer that goes without a word, sets the cause; a cause that is set
// here is told to the peer, which sets it there. Thread-safe but for NextCall, which one thread
// calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/site.pb.h"
#include "common/base/byte_buffer.h"
#include "worker/sync/local_group.h"

namespace causeway::worker {

// Carries a SiteLink: frames both ways, in order (proto/causeway/v1/site.proto). Between processes
// it is a gRPC stream (worker/member/rendezvous.h), in tests memory. One thread reads, one at a
// time writes.
class SiteStream {
 public:
  virtual ~SiteStream() = default;

  // Both wait; UNAVAILABLE once the stream is over, with what has ended it.
  virtual absl::Status Read(v1::SiteFrame& frame) = 0;
  virtual absl::Status Write(const v1::SiteFrame& frame) = 0;
  // Nothing more is written: the peer reads what was, then the end. Called where Write could be.
  virtual void CloseWrites() = 0;
  // Ends both directions at once, and whoever waits in them. From any thread.
  virtual void Cut() = 0;
};

// Text in a call or an answer.
inline std::span<const uint8_t> BytesOf(absl::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}
inline std::string TextOf(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A request between processes, in terms of whoever asks and answers.
struct SiteCall {
  uint64_t id = 0;
  int method = 0;
  int64_t argument = 0;
  double number = 0;
  ByteBuffer bytes;
};

class SiteLink {
 public:
  // `peer` is what messages call the other side.
  SiteLink(std::shared_ptr<SiteStream> stream, std::string peer,
           std::shared_ptr<SharedCause> cause);
  // Leaves, and waits a few seconds for the peer to hear it.
  ~SiteLink();
  SiteLink(const SiteLink&) = delete;
  SiteLink& operator=(const SiteLink&) = delete;

  // Begins to receive. `handle` is asked first, on the receiving thread, and says whether it has
  // dealt with a call; the others are NextCall's.
  void Start(std::function<bool(SiteCall&)> handle = nullptr);

  // Sends the call; returns its id. Errors: the cause.
  absl::StatusOr<uint64_t> Call(int method, int64_t argument, double number,
                                std::span<const uint8_t> bytes);
  // Waits for the answer to a call, once: its bytes, the error that it was answered with, or the
  // cause.
  absl::StatusOr<ByteBuffer> Await(uint64_t id);
  // Both.
  absl::StatusOr<ByteBuffer> CallAndAwait(int method, int64_t argument = 0, double number = 0,
                                          std::span<const uint8_t> bytes = {});

  // Tells the peer good-bye if there is no cause, and wakes whoever waits.
  void Leave();

  // Waits for the next call; nothing once the peer, or this side, has left. Errors: the cause.
  absl::StatusOr<std::optional<SiteCall>> NextCall();
  absl::Status Answer(uint64_t id, const absl::Status& status, std::span<const uint8_t> bytes = {});

  // Whether somebody waits for an answer, and how much the peer has said so far.
  struct Waits {
    bool any = false;
    uint64_t frames = 0;
  };
  Waits waits() const;

  const std::string& peer() const { return peer_; }

 private:
  struct Answered {
    absl::Status status;
    ByteBuffer bytes;
  };

  absl::Status Send(v1::SiteFrame frame, std::span<const uint8_t> bytes);
  void CloseWrites();
  // Reads a whole message.
  absl::Status Receive(v1::SiteFrame& frame, ByteBuffer& bytes);
  void ReceiveAll();
  void Fail(const absl::Status& cause);

  const std::shared_ptr<SiteStream> stream_;
  const std::string peer_;
  const std::shared_ptr<SharedCause> cause_;
  std::function<bool(SiteCall&)> handle_;
  int listener_ = 0;                  // Number of the listener at the cause.
  std::atomic<uint64_t> frames_ = 0;  // That came.

  absl::Mutex send_mutex_;
  bool closed_ ABSL_GUARDED_BY(send_mutex_) = false;  // For writing.
  mutable absl::Mutex mutex_;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;  // In Await.
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Answered> answers_ ABSL_GUARDED_BY(mutex_);
  std::deque<SiteCall> calls_ ABSL_GUARDED_BY(mutex_);
  bool peer_left_ ABSL_GUARDED_BY(mutex_) = false;
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;  // Or this side has left.
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  bool received_all_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread receiver_;
};

// An error that the peer has answered with, or that a call to it ended with, in its name.
absl::Status OfPeer(const SiteLink& link, const absl::Status& status);
// Whether an error, or what it was annotated with, is OfPeer's.
bool IsOfPeer(const absl::Status& status);

}  // namespace causeway::worker
