// A site of several processes with GPUs, for tests: process 0's backend, and a thread for each of
// the others, with links between them as between processes. The GPUs form groups of threads where
// they are emulated, and use NCCL where they are not.
#pragma once

#include <memory>
#include <vector>

#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"
#include "worker/sync/backend.h"

namespace causeway::worker::cuda {

// `devices` by process: the first process has the first ones.
std::unique_ptr<TrainingBackend> MakeTestSite(const v1::RunConfig& config, const FragmentPlan& plan,
                                              const std::vector<int>& devices);

}  // namespace causeway::worker::cuda
