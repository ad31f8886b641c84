// A run, "any-1", that awaits its model.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/params/run_config.h"
#include "server/core/served_run.h"
#include "tests/unit/server/core/small_run.h"
#include "tests/unit/server/store/memory_store.h"

namespace causeway::server {

inline v1::RunConfig WaitingConfig(const std::string& text) {
  v1::RunConfig config = ParseRunConfig(text, "a test").value();
  CompleteRunConfig(config, ModelIs::kStillToCome).value();
  return config;
}

struct WaitingRun {
  explicit WaitingRun(const std::string& text)
      : run(WaitingConfig(text), "any-1",
            [this](const BroughtModel& model, const std::vector<float>& values)
                -> absl::StatusOr<std::unique_ptr<Coordinator>> {
              ++begins;
              if (!disk.ok()) return disk;
              Coordinator::Options options;
              options.config = model.config;
              options.run_id = "any-1";
              options.initial_values = ValuesOf(model.plan, values);
              options.clock = Clock::Real();
              options.store = &store;
              return Coordinator::Create(std::move(options));
            }) {}

  MemoryStore store;
  int begins = 0;     // How often it was to begin.
  absl::Status disk;  // What beginning meets.
  ServedRun run;
};

}  // namespace causeway::server
