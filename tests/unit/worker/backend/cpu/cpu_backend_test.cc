#include "worker/backend/cpu/cpu_backend.h"

#include "common/base/thread_pool.h"
#include "tests/unit/worker/backend/backend_contract.h"

namespace causeway::worker {
namespace {

std::unique_ptr<TrainingBackend> Make(const v1::RunConfig& config, const FragmentPlan& plan) {
  static ThreadPool pool(2);
  return std::make_unique<CpuBackend>(config, plan, &pool);
}

INSTANTIATE_TEST_SUITE_P(Cpu, BackendContract, ::testing::Values(BackendFactory{"cpu", Make}));

TEST(CpuBackend, SaysWhatItRunsOn) {
  const v1::RunConfig config = ContractConfig();
  const FragmentPlan plan = FragmentPlan::Create(config).value();
  EXPECT_EQ(Make(config, plan)->Describe(), "cpu, 2 threads");
}

}  // namespace
}  // namespace causeway::worker
