// The contract of every TrainingBackend, as one suite: a test program lists backend_contract.cc
// among its sources and instantiates BackendContract with its factories.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"
#include "worker/sync/backend.h"

namespace causeway::worker {

struct BackendFactory {
  std::string name;
  // Both arguments outlive what is made.
  std::function<std::unique_ptr<TrainingBackend>(const v1::RunConfig&, const FragmentPlan&)> make;
};
inline void PrintTo(const BackendFactory& factory, std::ostream* out) { *out << factory.name; }

// A complete configuration of a small model, of shapes that every backend takes: 4 windows of 16
// tokens per step in micro-batches of 2. `settings` is textproto over it.
v1::RunConfig ContractConfig(const std::string& settings = "");

// Windows that are easy to learn, a function of step and micro-batch.
MicroBatchReader ContractReader(int64_t step);

class BackendContract : public ::testing::TestWithParam<BackendFactory> {};

}  // namespace causeway::worker
