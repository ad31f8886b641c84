// A whole run in one process: the real coordinator, the real workers' engine and trainer, and an
// in-process exchange between them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "causeway/v1/config.pb.h"
#include "common/base/thread_pool.h"
#include "common/params/fragment_plan.h"
#include "server/core/coordinator.h"
#include "tests/reference/in_process_exchange.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/base/temporary_folder.h"
#include "tests/unit/server/store/memory_store.h"
#include "worker/data/dataset.h"
#include "worker/model/worker_checkpoint.h"
#include "worker/sync/replica.h"
#include "worker/sync/sync_engine.h"
#include "worker/train/trainer.h"

namespace causeway {

// A model small enough for hundreds of steps in a test, and settings over it.
v1::RunConfig SmallRun(const std::string& settings);

// A folder of byte shards made of reproducible, compressible text.
class TestData {
 public:
  TestData();
  const worker::Dataset& dataset() const { return *dataset_; }

 private:
  TemporaryFolder folder_;
  std::unique_ptr<worker::Dataset> dataset_;
};

// One worker; its methods are called by one thread.
class Site {
 public:
  // Null: on the CPU.
  using MakeBackend = std::function<std::unique_ptr<worker::TrainingBackend>(const v1::RunConfig&,
                                                                             const FragmentPlan&)>;

  Site(const v1::RunConfig& config, const FragmentPlan& plan, const TestData& data,
       server::Coordinator& coordinator, const std::string& id, int threads = 1,
       const MakeBackend& make_backend = nullptr);

  // Fetches the published state and reports ready.
  void Begin();
  // Trains up to and including `step`.
  void TrainTo(int64_t step);
  void Finish();

  worker::WorkerCheckpoint Save();
  // Instead of Begin.
  void Restore(worker::WorkerCheckpoint checkpoint);

  // This worker's own, in arena order.
  std::vector<float> Parameters();
  worker::SyncEngine& sync() { return *sync_; }
  InProcessExchange& exchange() { return *exchange_; }
  const std::vector<double>& losses() const { return losses_; }

 private:
  const v1::RunConfig& config_;
  FakeClock clock_;
  ThreadPool pool_;
  std::unique_ptr<InProcessExchange> exchange_;
  std::unique_ptr<worker::Trainer> trainer_;
  std::unique_ptr<worker::Replica> replica_;
  std::unique_ptr<worker::SyncEngine> sync_;
  int64_t step_ = 0;
  int64_t tokens_ = 0;
  std::vector<double> losses_;
};

// The coordinator of a run with its surroundings.
class TestRun {
 public:
  explicit TestRun(const v1::RunConfig& config);

  const v1::RunConfig& config() const { return config_; }
  const FragmentPlan& plan() const { return plan_; }
  server::Coordinator& coordinator() { return *coordinator_; }
  const std::vector<float>& initial() const { return initial_; }
  FakeClock& clock() { return clock_; }

  // Trains that many workers, each in a thread, for the whole budget. Returns the published
  // parameters.
  std::vector<float> TrainAll(const TestData& data, int workers);

 private:
  const v1::RunConfig config_;
  const FragmentPlan plan_;
  std::vector<float> initial_;
  FakeClock clock_;
  server::MemoryStore store_;
  std::unique_ptr<server::Coordinator> coordinator_;
};

}  // namespace causeway
