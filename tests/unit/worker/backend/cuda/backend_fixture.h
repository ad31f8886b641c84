// A CudaBackend with random weights, for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/params/initialize.h"
#include "tests/unit/worker/backend/backend_contract.h"
#include "tests/unit/worker/backend/cuda/test_backend.h"

namespace causeway::worker::cuda {

class CudaBackendFixture : public ::testing::Test {
 protected:
  void Begin(const CudaBackend::Options& options, const std::string& settings = "") {
    backend_.reset();
    config_ = ContractConfig(settings);
    plan_ = FragmentPlan::Create(config_).value();
    backend_ = CudaBackend::Create(config_, plan_, options).value();
    std::vector<float> parameters(static_cast<size_t>(plan_.arena_size()));
    InitializeParameters(plan_, 7, parameters);
    ASSERT_TRUE(backend_->SetParameters(parameters).ok());
  }
  absl::Status Step(int64_t step) { return backend_->Step(step, ContractReader(step)).status(); }
  std::vector<float> Parameters() {
    std::vector<float> parameters(static_cast<size_t>(plan_.arena_size()));
    EXPECT_TRUE(backend_->CopyParameters(parameters).ok());
    return parameters;
  }

  v1::RunConfig config_;
  FragmentPlan plan_;
  std::unique_ptr<CudaBackend> backend_;
};

}  // namespace causeway::worker::cuda
