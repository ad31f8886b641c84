// Holds every Store to its promises, whatever it keeps its things in.
//
//   INSTANTIATE_TEST_SUITE_P(MemoryStore, StoreConformanceTest,
//                            testing::Values([] { return std::make_unique<MemoryHarness>(); }));
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "gtest/gtest.h"
#include "server/store/store.h"

namespace causeway::server {

// A store and what outlives it.
class StoreHarness {
 public:
  virtual ~StoreHarness() = default;
  virtual Store& store() = 0;
  // As after the end of the process that had it: Recover is to be called next.
  virtual void Reopen() = 0;
};

using StoreHarnessFactory = std::function<std::unique_ptr<StoreHarness>()>;

class StoreConformanceTest : public testing::TestWithParam<StoreHarnessFactory> {
 protected:
  StoreConformanceTest() : harness_(GetParam()()) {}
  Store& store() { return harness_->store(); }
  // Recover, and BeginRun with ScriptedIdentity.
  void Begin();
  std::optional<RecoveredRun> Reopen();

  const std::unique_ptr<StoreHarness> harness_;
};

}  // namespace causeway::server
