#include "tests/integration/sites.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/params/initialize.h"
#include "common/params/run_config.h"
#include "common/telemetry/event_log.h"
#include "worker/data/tokenize.h"
#include "worker/data/tokenizer.h"

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
  EXPECT_TRUE(worker::Tokenize(files, worker::ByteTokenizer(), options).ok());
  dataset_ = std::make_unique<worker::Dataset>(Must(worker::Dataset::Open(files, options.output)));
}

Site::Site(const v1::RunConfig& config, const FragmentPlan& plan, const TestData& data,
           server::Coordinator& coordinator, const std::string& id, int threads)
    : config_(config), pool_(threads), exchange_(Must(InProcessExchange::Join(coordinator, id))) {
  trainer_ = Must(worker::Trainer::Create(config, plan, data.dataset(),
                                          exchange_->welcome().data_slot(), &pool_));
  replica_ = std::make_unique<worker::HostReplica>(plan, config.sync(), trainer_->parameters(),
                                                   trainer_->gradients());
  worker::SyncEngine::Options options;
  options.config = config.sync();
  options.plan = &plan;
  options.replica = replica_.get();
  options.exchange = exchange_.get();
  options.clock = &clock_;
  options.data_slot = exchange_->welcome().data_slot();
  sync_ = std::make_unique<worker::SyncEngine>(std::move(options));
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
    const absl::Status status = sync_->AfterStep(step_, report.tokens, report.draws);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(exchange_->Heartbeat(step_, tokens_).ok());
  }
}

void Site::Finish() {
  const absl::Status status = sync_->Drain();
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(exchange_->Leave(v1::Leave::FINISHED).ok());
  ASSERT_TRUE(exchange_->session_status().ok()) << exchange_->session_status();
}

worker::WorkerCheckpoint Site::Save() {
  worker::WorkerCheckpoint checkpoint;
  checkpoint.config = config_;
  checkpoint.step = step_;
  checkpoint.tokens = tokens_;
  checkpoint.parameters.assign(trainer_->parameters().begin(), trainer_->parameters().end());
  if (trainer_->optimizer() != nullptr) {
    const auto moments = trainer_->optimizer()->State();
    checkpoint.first_moments.assign(moments[0].values.begin(), moments[0].values.end());
    checkpoint.second_moments.assign(moments[1].values.begin(), moments[1].values.end());
    checkpoint.optimizer_updates = trainer_->optimizer()->updates();
  }
  checkpoint.sync = Must(sync_->Save());
  return checkpoint;
}

void Site::Restore(worker::WorkerCheckpoint checkpoint) {
  step_ = checkpoint.step;
  tokens_ = checkpoint.tokens;
  std::ranges::copy(checkpoint.parameters, trainer_->parameters().begin());
  if (trainer_->optimizer() != nullptr) {
    const auto moments = trainer_->optimizer()->State();
    std::ranges::copy(checkpoint.first_moments, moments[0].values.begin());
    std::ranges::copy(checkpoint.second_moments, moments[1].values.begin());
    trainer_->optimizer()->set_updates(checkpoint.optimizer_updates);
  }
  ASSERT_TRUE(sync_->Restore(std::move(checkpoint.sync), step_).ok());
  ASSERT_TRUE(exchange_->Ready(step_).ok());
}

TestRun::TestRun(const v1::RunConfig& config)
    : config_(config),
      plan_(Must(FragmentPlan::Create(config.model(), config.sync()))),
      initial_(static_cast<size_t>(plan_.arena_size())) {
  InitializeParameters(plan_, config.train().seed(), initial_);
  server::Coordinator::Options options;
  options.config = config_;
  options.run_id = "run-test";
  options.initial_parameters = initial_;
  options.clock = &clock_;
  options.store = &store_;
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
