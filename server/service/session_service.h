// causeway.v1.Session: Describe, and one stream per worker.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "causeway/v1/session.grpc.pb.h"
#include "causeway/v1/session.pb.h"
#include "common/base/thread_pool.h"
#include "common/rpc/self_owned.h"
#include "server/access/access.h"
#include "server/core/served_run.h"
#include "server/service/model_reception.h"

namespace causeway::server {

// How long a text for people may be that a peer sends: it lands in logs, events and summaries.

inline constexpr size_t kMaxTextBytes = 1024;

inline absl::Status CheckLength(absl::string_view what, absl::string_view text) {
  if (text.size() <= kMaxTextBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " has ", text.size(), " bytes, at most ", kMaxTextBytes, " are taken"));
}

// For what must not fail because it is long: the last words of a worker.
inline void ShortenText(std::string& text) {
  if (text.size() > kMaxTextBytes) text.resize(kMaxTextBytes);
}

class SessionReactor;

class SessionService final : public v1::Session::CallbackService {
 public:
  // All outlive the service. Messages are handled by `run_long`: what they change is saved before
  // they are answered. A stream must bring its Join within `join_timeout`, and its worker read
  // within that time what it ends with.
  SessionService(const ServedRun& run, Access& access, ModelReception& models, Runner run_long,
                 absl::Duration join_timeout)
      : run_(run),
        access_(access),
        models_(models),
        run_long_(std::move(run_long)),
        join_timeout_(join_timeout) {}
  ~SessionService() override;

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeRequest* request,
                                     v1::DescribeResponse* response) override;
  grpc::ServerReadReactor<v1::BringModelRequest>* BringModel(
      grpc::CallbackServerContext* context, v1::BringModelResponse* response) override;
  grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>* Attach(
      grpc::CallbackServerContext* context) override;

  // Ends the streams that have kept silent for too long, and those that are closed, but not read.
  // To be called every now and then.
  void Tick();
  // Ends the streams of those whose token was revoked. To be called every few seconds.
  void CloseRevokedStreams();

 private:
  const ServedRun& run_;
  Access& access_;
  ModelReception& models_;
  const Runner run_long_;
  const absl::Duration join_timeout_;
  OpenReactors<SessionReactor> open_;
};

// Messages that wait for a session's stream: bounded, so a worker that does not read costs no more.

// Oldest first. Of messages that replace what was said before (Roster, LeaseRenewed) only the last
// one waits. Not thread-safe.
class SessionOutbox {
 public:
  // `max_bytes`: what the waiting messages may take in memory.
  explicit SessionOutbox(size_t max_bytes) : max_bytes_(max_bytes) {}

  // False if that is too much: the message was not added.
  bool Add(const v1::CoordinatorMessage& message);
  // Before all others, whatever its size.
  void AddFirst(v1::CoordinatorMessage message);

  bool empty() const { return waiting_.empty(); }
  size_t bytes() const { return bytes_; }
  // Takes the first message away: it stays valid until the next call of Take. Not if empty().
  const v1::CoordinatorMessage& Take();
  // Drops whatever waits.
  void Clear();

 private:
  struct Waiting {
    v1::CoordinatorMessage message;
    size_t bytes = 0;
  };

  const size_t max_bytes_;
  std::list<Waiting> waiting_;
  size_t bytes_ = 0;  // Total of waiting_.
  v1::CoordinatorMessage taken_;
};

}  // namespace causeway::server
