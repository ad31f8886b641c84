// Session.BringModel: takes the model of a run that awaits one, from one site or a few at once.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/session.pb.h"
#include "common/base/thread_pool.h"
#include "common/rpc/self_owned.h"
#include "server/access/access.h"
#include "server/core/served_run.h"

namespace causeway::server {

class ModelReactor;

// Thread-safe.
class ModelReception {
 public:
  struct Options {
    Runner run_long;  // Places the values and begins the run.
    // A stream that brings nothing for so long is ended.
    absl::Duration stall = absl::Seconds(60);
    // Says whether there is room for the transfers of a run with that plan.
    std::function<absl::Status(const FragmentPlan& plan)> check_room;
    // Gets ready for the run, before it is seen.
    std::function<void(Coordinator& coordinator)> ready;
  };
  // Both outlive the reception.
  ModelReception(ServedRun& run, Access& access, Options options)
      : run_(run), access_(access), options_(std::move(options)) {}

  grpc::ServerReadReactor<v1::BringModelRequest>* Open(grpc::CallbackServerContext& context);
  // Ends the streams that stand still, and those of a run that has its model. To be called every
  // now and then.
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
  absl::Mutex opening_;  // One stream at a time.
  absl::Mutex mutex_;
  Part kept_ ABSL_GUARDED_BY(mutex_);
  OpenReactors<ModelReactor> streams_;
};

}  // namespace causeway::server
