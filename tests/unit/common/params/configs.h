// Configurations for tests, written as textproto.
#pragma once

#include <string>

#include "common/params/run_config.h"
#include "gtest/gtest.h"

namespace causeway {

// A small model whose fields all differ where they may.
inline constexpr char kSmallModel[] = R"(
  model { vocabulary_size: 300 layers: 4 width: 64 heads: 4 mlp_width: 192 sequence_length: 32 }
)";

inline v1::RunConfig Parsed(const std::string& text, const v1::RunConfig& base = {}) {
  const absl::StatusOr<v1::RunConfig> config = ParseRunConfig(text, "test", base);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : v1::RunConfig();
}

inline v1::RunConfig Completed(const std::string& text, const v1::RunConfig& base = {}) {
  v1::RunConfig config = Parsed(text, base);
  const absl::StatusOr<ConfigWarnings> warnings = CompleteRunConfig(config);
  EXPECT_TRUE(warnings.ok()) << warnings.status() << "\nof " << text;
  return config;
}

}  // namespace causeway
