#include "worker/backend/cpu/cpu_site.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status_macros.h"
#include "common/params/initialize.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/worker/backend/backend_contract.h"
#include "tests/unit/worker/backend/cpu/model_fixture.h"
#include "tests/unit/worker/backend/site_thread.h"
#include "worker/sync/site_calls.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

// The processes 1, 2, ... of a site, in threads.
struct OtherProcesses {
  OtherProcesses(const v1::RunConfig& config, const FragmentPlan& plan, int processes,
                 int threads) {
    for (int i = 1; i < processes; ++i) {
      Process& process = *all.emplace_back(std::make_unique<Process>(i, threads));
      process.server = std::make_unique<StepServer>(process.thread.far(), config, plan,
                                                    &process.pool, RankRange{i, 1, processes});
      process.thread.Serve(nullptr, [server = process.server.get()](SiteCall& call) {
        const absl::StatusOr<bool> known = server->Handle(call);
        EXPECT_TRUE(!known.ok() || *known);
        return known.status();
      });
    }
  }
  std::vector<SiteLink*> links() {
    std::vector<SiteLink*> links;
    for (const auto& process : all) links.push_back(&process->thread.link());
    return links;
  }

  struct Process {
    Process(int number, int threads) : pool(threads), thread(number) {}
    ThreadPool pool;
    std::unique_ptr<StepServer> server;
    SiteThread thread;  // Ends before what it uses.
  };
  std::vector<std::unique_ptr<Process>> all;
};

class HelpersInThreads final : private OtherProcesses, public RemoteHelpers {
 public:
  HelpersInThreads(const v1::RunConfig& config, const FragmentPlan& plan, ThreadPool* pool,
                   int processes, int threads)
      : OtherProcesses(config, plan, processes, threads),
        RemoteHelpers(config, plan, pool, links()) {}
};

ThreadPool& Pool(int threads) {
  static ThreadPool one(1);
  static ThreadPool three(3);
  return threads == 1 ? one : three;
}

std::unique_ptr<TrainingBackend> MakeSite(const v1::RunConfig& config, const FragmentPlan& plan,
                                          int processes, int threads = 1) {
  ThreadPool* const pool = &Pool(threads);
  if (processes == 1) return std::make_unique<CpuBackend>(config, plan, pool);
  return std::make_unique<CpuBackend>(
      config, plan, pool,
      std::make_unique<HelpersInThreads>(config, plan, pool, processes, threads));
}

INSTANTIATE_TEST_SUITE_P(CpuSite, BackendContract,
                         ::testing::Values(BackendFactory{
                             "twoProcesses",
                             [](const v1::RunConfig& config, const FragmentPlan& plan) {
                               return MakeSite(config, plan, 2);
                             }}));

struct Trained {
  std::vector<StepReport> reports;
  std::vector<float> parameters;
};

Trained Train(const v1::RunConfig& config, int processes, int threads = 1, int64_t steps = 3) {
  const FragmentPlan plan = FragmentPlan::Create(config).value();
  const std::unique_ptr<TrainingBackend> backend = MakeSite(config, plan, processes, threads);
  Trained trained;
  trained.parameters.resize(static_cast<size_t>(plan.arena_size()));
  InitializeParameters(plan, 7, trained.parameters);
  EXPECT_TRUE(backend->SetParameters(trained.parameters).ok());
  for (int64_t step = 1; step <= steps; ++step) {
    auto report = backend->Step(step, ContractReader(step));
    EXPECT_TRUE(report.ok()) << report.status();
    if (report.ok()) trained.reports.push_back(*report);
  }
  EXPECT_TRUE(backend->CopyParameters(trained.parameters).ok());
  return trained;
}

v1::RunConfig FourMicroBatches(const std::string& settings = "") {
  return ContractConfig("train { micro_batch_sequences: 1 document_masking: true } " + settings);
}

// The loss is added up by micro-batch on any number of processes; gradients by process.
TEST(CpuSite, TheFirstLossHasTheBitsOfOneProcess) {
  const Trained one = Train(FourMicroBatches(), 1);
  for (const int processes : {2, 4}) {
    const Trained several = Train(FourMicroBatches(), processes);
    EXPECT_EQ(several.reports[0].loss, one.reports[0].loss);
    for (size_t i = 0; i < one.reports.size(); ++i) {
      EXPECT_EQ(several.reports[i].tokens, one.reports[i].tokens);
      EXPECT_EQ(several.reports[i].draws, one.reports[i].draws);
      EXPECT_EQ(several.reports[i].update->learning_rate, one.reports[i].update->learning_rate);
      EXPECT_NEAR(several.reports[i].update->gradient_norm, one.reports[i].update->gradient_norm,
                  1e-4 * one.reports[i].update->gradient_norm);
    }
    EXPECT_LT(RelativeDistance(several.parameters, one.parameters), 1e-4);
  }
}

TEST(CpuSite, TheSameNumberOfProcessesGivesTheSameBitsWithAnyThreads) {
  const v1::RunConfig config = FourMicroBatches("train { optimizer: MUON }");
  const Trained expected = Train(config, 2);
  const Trained again = Train(config, 2, /*threads=*/3);
  EXPECT_EQ(again.parameters, expected.parameters);
  EXPECT_EQ(again.reports.back().loss, expected.reports.back().loss);
}

// A checkpoint is process 0's alone.
TEST(CpuSite, ContinuesWithAnotherNumberOfProcesses) {
  const v1::RunConfig config = FourMicroBatches();
  const FragmentPlan plan = FragmentPlan::Create(config).value();
  const auto two = MakeSite(config, plan, 2);
  std::vector<float> parameters(static_cast<size_t>(plan.arena_size()));
  InitializeParameters(plan, 7, parameters);
  ASSERT_TRUE(two->SetParameters(parameters).ok());
  ASSERT_TRUE(two->Step(1, ContractReader(1)).ok());
  ASSERT_TRUE(two->CopyParameters(parameters).ok());
  const OptimizerState state = two->SaveOptimizer().value();
  for (const int processes : {1, 4}) {
    const auto after = MakeSite(config, plan, processes);
    ASSERT_TRUE(
        after->RestoreOptimizer(state.updates, state.first_moments, state.second_moments).ok());
    ASSERT_TRUE(after->SetParameters(parameters).ok());
    const double continued = after->Step(2, ContractReader(2))->loss;
    if (processes == 4) {
      EXPECT_EQ(continued, two->Step(2, ContractReader(2))->loss);
    }
  }
}

TEST(CpuSite, ABatchThatCannotBeSharedOutIsRefused) {
  const v1::RunConfig config = ContractConfig();
  EXPECT_TRUE(CheckShares(config.train(), 2, "processes", "start fewer").ok());
  EXPECT_THAT(
      CheckShares(config.train(), 3, "processes", "start fewer"),
      StatusIs(kInvalidArgument,
               ::testing::AllOf(HasSubstr("2 micro-batches"), HasSubstr("which 3 processes"),
                                HasSubstr("start fewer"), HasSubstr("micro_batch_sequences"))));
}

// A backend whose only helper is what the test makes of it.
class LoneHelper : public ::testing::Test {
 protected:
  void Begin(const std::function<absl::Status(SiteLink&, SiteCall&)>& answer) {
    auto helpers = std::make_unique<RemoteHelpers>(config_, plan_, &Pool(1),
                                                   std::vector<SiteLink*>{&thread_.link()});
    backend_ = std::make_unique<CpuBackend>(config_, plan_, &Pool(1), std::move(helpers));
    thread_.Serve(nullptr, [this, answer](SiteCall& call) {
      return call.method == kSiteGradient ? answer(thread_.far(), call) : absl::OkStatus();
    });
  }
  absl::Status Step() { return backend_->Step(1, ContractReader(1)).status(); }

  const v1::RunConfig config_ = ContractConfig();
  const FragmentPlan plan_ = FragmentPlan::Create(config_).value();
  SiteThread thread_{1};
  std::unique_ptr<CpuBackend> backend_;
};

TEST_F(LoneHelper, ItsErrorIsTheStepsAndNamesIt) {
  Begin([](SiteLink& link, SiteCall& call) {
    return link.Answer(call.id, absl::InternalError("out of luck"));
  });
  const absl::Status status = Step();
  EXPECT_THAT(status, StatusIs(kInternal, "process 1: out of luck"));
  EXPECT_TRUE(IsOfPeer(Annotate(status, "step 7"))) << "so that process 0 does not claim it";
}

TEST_F(LoneHelper, AnAnswerOfAnotherLengthIsRefused) {
  Begin([](SiteLink& link, SiteCall& call) {
    return link.Answer(call.id, absl::OkStatus(), std::vector<uint8_t>(12));
  });
  EXPECT_THAT(Step(), StatusIs(kDataLoss, HasSubstr("a gradient of 12 bytes")));
}

TEST_F(LoneHelper, ThatIsGoneEndsTheStep) {
  Begin([this](SiteLink&, SiteCall&) {
    thread_.far_cause()->Set(absl::UnavailableError("process 1 of this site: the machine burns"));
    return absl::CancelledError("it is gone");
  });
  EXPECT_THAT(Step(), StatusIs(kAborted, HasSubstr("the machine burns")));
}

TEST(StepServer, RefusesSharesAndParametersOfOtherSizes) {
  const v1::RunConfig config = ContractConfig();
  const FragmentPlan plan = FragmentPlan::Create(config).value();
  OtherProcesses others(config, plan, 2, 1);
  SiteLink& link = *others.links().front();
  const auto gradient = [&](size_t parameters, size_t share) {
    EXPECT_TRUE(link.Call(kSiteParameters, 0, 0, ByteBuffer(parameters)).ok());
    return link.CallAndAwait(kSiteGradient, 0, 0, ByteBuffer(share)).status();
  };
  EXPECT_THAT(std::string(gradient(8, 0).message()), HasSubstr("parameters; 2 came"));
  const auto arena = static_cast<size_t>(plan.arena_size()) * sizeof(float);
  EXPECT_THAT(std::string(gradient(arena, 7).message()), HasSubstr("256 bytes; 7 came"));
}

}  // namespace
}  // namespace causeway::worker
