// causeway.v1.Session: Describe, one stream per worker, and the model of a run that awaits one.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/session.grpc.pb.h"
#include "causeway/v1/session.pb.h"
#include "common/base/thread_pool.h"
#include "common/rpc/self_owned.h"
#include "server/access/access.h"
#include "server/core/served_run.h"

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

class ModelReactor;
class SessionReactor;

// Thread-safe.
class SessionService final : public v1::Session::CallbackService {
 public:
  struct Options {
    // Handles what sessions say: what it changes is saved before it is answered.
    Runner run_words;
    // Until a stream's Join; and until its worker reads what it ends with.
    absl::Duration join_timeout = absl::Seconds(10);
    // Places the values of a model and begins the run.
    Runner run_long;
    // A stream that brings nothing of a model for so long is ended.
    absl::Duration stall = absl::Seconds(60);
    // Says whether there is room for the transfers of a run with that plan.
    std::function<absl::Status(const FragmentPlan& plan)> check_room;
    // Gets ready for a run whose model was brought, before it is seen.
    std::function<void(Coordinator& coordinator)> ready;
  };
  // Both outlive the service.
  SessionService(ServedRun& run, Access& access, Options options)
      : run_(run), access_(access), options_(std::move(options)) {}
  ~SessionService() override;

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeRequest* request,
                                     v1::DescribeResponse* response) override;
  // From one site or a few at once.
  grpc::ServerReadReactor<v1::BringModelRequest>* BringModel(
      grpc::CallbackServerContext* context, v1::BringModelResponse* response) override;
  grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>* Attach(
      grpc::CallbackServerContext* context) override;

  // Ends the streams that have kept silent for too long, those that are closed, but not read, and
  // models for a run that has one. To be called every now and then.
  void Tick();
  // Ends the streams of those whose token was revoked, and so on (Access::CheckStillValid). To be
  // called every few seconds.
  void EndRevokedStreams();

 private:
  friend class ModelReactor;

  // Part of a model, whose stream broke.
  struct Part {
    v1::ModelHeader header;
    std::unique_ptr<ModelAssembly> assembly;  // Null: there is none.
    absl::Time since = absl::InfinitePast();
  };
  void Keep(Part part);
  // The part that came of a model with that header; null if nothing did.
  std::unique_ptr<ModelAssembly> TakeKept(const v1::ModelHeader& header);

  ServedRun& run_;
  Access& access_;
  const Options options_;
  OpenReactors<SessionReactor> sessions_;
  OpenReactors<ModelReactor> models_;
  absl::Mutex opening_;  // One stream of a model at a time.
  absl::Mutex mutex_;
  Part kept_ ABSL_GUARDED_BY(mutex_);
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
