#include "tests/integration/sites.h"

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/params/initialize.h"
#include "common/params/run_config.h"
#include "tests/unit/server/core/small_run.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/data/text_corpus.h"

namespace causeway {
namespace {

// Sentences from a small vocabulary: a model learns them within a few dozen steps.
std::string SomeText() {
  constexpr const char* kWords[] = {"the",   "bridge", "carries", "a",      "stone", "over",
                                    "water", "and",    "wind",    "slowly", "home",  "again"};
  std::string text;
  for (uint64_t i = 0; text.size() < 200'000; ++i) {
    absl::StrAppend(&text, kWords[RandomBits(3, 1, i) % std::size(kWords)],
                    i % 9 == 8 ? ".\n" : " ");
  }
  return text;
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  EXPECT_TRUE(value.ok()) << value.status();
  return *std::move(value);
}

}  // namespace

v1::RunConfig SmallRun(const std::string& settings) {
  v1::RunConfig config = Must(ParseRunConfig(
      absl::StrCat("model { layers: 2 width: 32 heads: 2 mlp_width: 64 sequence_length: 32 "
                   "qk_norm: true } train { batch_sequences: 4 seed: 11 } ",
                   settings),
      "test"));
  EXPECT_TRUE(CompleteRunConfig(config).ok()) << CompleteRunConfig(config).status();
  return config;
}

TestData::TestData() {
  FileSystem& files = *FileSystem::Real();
  const std::string text = JoinPath(folder_.path(), "text.txt");
  EXPECT_TRUE(WriteFileAtomically(files, text, absl::string_view(SomeText())).ok());
  worker::TokenizeOptions options;
  options.inputs = {text};
  options.output = JoinPath(folder_.path(), "data");
  EXPECT_TRUE(worker::Tokenize(files, options).ok());
  dataset_ = std::make_unique<worker::Dataset>(Must(worker::Dataset::Open(files, options.output)));
}

Site::Site(const v1::RunConfig& config, const FragmentPlan& plan, const TestData& data,
           server::Coordinator& coordinator, const std::string& id, int threads,
           const MakeBackend& make_backend)
    : config_(config), pool_(threads), exchange_(Must(InProcessExchange::Join(coordinator, id))) {
  std::unique_ptr<worker::TrainingBackend> backend =
      make_backend != nullptr ? make_backend(config, plan)
                              : std::make_unique<worker::CpuBackend>(config, plan, &pool_);
  trainer_ = Must(worker::Trainer::Create(config, data.dataset(), exchange_->welcome().data_slot(),
                                          std::move(backend)));
  replica_ = Must(trainer_->backend().MakeReplica());
  worker::SyncEngine::Options options;
  options.config = config.sync();
  options.plan = &plan;
  options.replica = replica_.get();
  options.exchange = exchange_.get();
  options.clock = &clock_;
  options.data_slot = exchange_->welcome().data_slot();
  sync_ = std::make_unique<worker::SyncEngine>(std::move(options));
}

std::vector<float> Site::Parameters() {
  std::vector<float> parameters(Must(sync_->published()).size());
  EXPECT_TRUE(trainer_->backend().CopyParameters(parameters).ok());
  return parameters;
}

void Site::Begin() {
  step_ = Must(sync_->Fetch(exchange_->welcome().run_step()));
  ASSERT_TRUE(exchange_->Ready(step_).ok());
}

void Site::TrainTo(int64_t step) {
  while (step_ < step) {
    const worker::StepReport report = Must(trainer_->Step(++step_, sync_->next_draw()));
    tokens_ += report.tokens;
    losses_.push_back(report.loss);
    ASSERT_EQ(sync_->AfterStep(step_, report.tokens, report.draws), absl::OkStatus());
    ASSERT_TRUE(exchange_->Heartbeat(step_, tokens_).ok());
  }
}

void Site::Finish() {
  ASSERT_EQ(sync_->Drain(), absl::OkStatus());
  ASSERT_TRUE(exchange_->Leave(v1::Leave::FINISHED).ok());
  ASSERT_TRUE(exchange_->session_status().ok()) << exchange_->session_status();
}

worker::WorkerCheckpoint Site::Save() {
  worker::WorkerCheckpoint checkpoint;
  checkpoint.config = config_;
  checkpoint.step = step_;
  checkpoint.tokens = tokens_;
  checkpoint.parameters = Parameters();
  worker::OptimizerState optimizer = Must(trainer_->backend().SaveOptimizer());
  checkpoint.optimizer_updates = optimizer.updates;
  checkpoint.first_moments = std::move(optimizer.first_moments);
  checkpoint.second_moments = std::move(optimizer.second_moments);
  checkpoint.sync = Must(sync_->Save());
  return checkpoint;
}

void Site::Restore(worker::WorkerCheckpoint checkpoint) {
  step_ = checkpoint.step;
  tokens_ = checkpoint.tokens;
  ASSERT_EQ(trainer_->backend().RestoreOptimizer(
                checkpoint.optimizer_updates, checkpoint.first_moments, checkpoint.second_moments),
            absl::OkStatus());
  ASSERT_TRUE(trainer_->backend().SetParameters(checkpoint.parameters).ok());
  ASSERT_TRUE(sync_->Restore(std::move(checkpoint.sync), step_).ok());
  ASSERT_TRUE(exchange_->Ready(step_).ok());
}

TestRun::TestRun(const v1::RunConfig& config)
    : config_(config), plan_(Must(FragmentPlan::Create(config))) {
  server::Coordinator::Options options =
      server::OptionsOf(config_, "run-test", store_, config.train().seed());
  initial_ = server::InitialOf(plan_, config_.train().seed());
  options.clock = &clock_;
  options.events = NullEventLog();
  coordinator_ = Must(server::Coordinator::Create(std::move(options)));
}

std::vector<float> TestRun::TrainAll(const TestData& data, int workers) {
  std::vector<std::unique_ptr<Site>> sites;
  for (int i = 0; i < workers; ++i) {
    sites.push_back(
        std::make_unique<Site>(config_, plan_, data, *coordinator_, absl::StrCat("worker-", i)));
  }
  for (auto& site : sites) site->Begin();
  std::vector<std::thread> threads;
  for (auto& site : sites) {
    threads.emplace_back([&] {
      site->TrainTo(config_.train().steps());
      site->Finish();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return coordinator_->PublishedParameters();
}

}  // namespace causeway
