// Every range and every combination that CompleteRunConfig refuses, with the name of the field;
// what it warns of, and what it takes. The table is configurations.txt.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file_system.h"
#include "common/params/run_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/params/configs.h"

namespace causeway {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

using Row = std::vector<std::string>;  // Settings, and what is said of them.

std::vector<Row> Rows(const std::string& section) {
  const std::string table = FileSystem::Real()->ReadFile(CAUSEWAY_CONFIGURATIONS).value();
  std::vector<Row> rows;
  bool inside = false;
  for (const absl::string_view line : absl::StrSplit(table, '\n', absl::SkipEmpty())) {
    if (absl::StartsWith(line, "[")) {
      inside = line == absl::StrCat("[", section, "]");
    } else if (inside) {
      rows.push_back(absl::StrSplit(line, " | "));
    }
  }
  EXPECT_THAT(rows, Not(IsEmpty())) << section;
  return rows;
}

void ExpectRefused(const std::string& section, const v1::RunConfig& base = {},
                   const char* model = kSmallModel) {
  for (const Row& row : Rows(section)) {
    ASSERT_GE(row.size(), 2U) << row[0];
    v1::RunConfig config = Parsed(row[0], Parsed(model, base));
    EXPECT_THAT(CompleteRunConfig(config),
                StatusIs(kInvalidArgument, AllOf(StartsWith(row[1]),
                                                 HasSubstr(row.size() > 2 ? row[2] : "; it is "))))
        << row[0];
  }
}

TEST(RefusedConfig, NamesTheField) { ExpectRefused("refused"); }

TEST(RefusedConfig, NamesTheFieldOfARunOfTensors) { ExpectRefused("refused of tensors", {}, ""); }

TEST(RefusedConfig, NamesTheFieldOverAPreset) {
  ExpectRefused("refused over data-parallel", *RunPreset("data-parallel"));
}

ConfigWarnings WarningsOf(const std::string& text) {
  v1::RunConfig config = Parsed(kSmallModel + text);
  const auto warnings = CompleteRunConfig(config);
  EXPECT_TRUE(warnings.ok()) << warnings.status() << "\nof " << text;
  return warnings.ok() ? *warnings : ConfigWarnings();
}

TEST(ConfigWarnings, SettingsThatTrainBadlyTogetherAreNamed) {
  for (const Row& row : Rows("warned")) {
    EXPECT_THAT(WarningsOf(row[0]), ElementsAre(HasSubstr(row.at(1)))) << row[0];
  }
  EXPECT_THAT(WarningsOf("outer { learning_rate: 1.5 } sync { mixing: 1 }"), SizeIs(2));
}

TEST(ConfigWarnings, NeutralSettingsHaveNone) {
  for (const Row& row : Rows("silent")) EXPECT_THAT(WarningsOf(row[0]), IsEmpty()) << row[0];
}

TEST(AcceptedConfig, TheEdgesOfTheRangesAreInside) {
  for (const Row& row : Rows("taken")) Completed(std::string(kSmallModel) + row[0]);
}

}  // namespace
}  // namespace causeway
