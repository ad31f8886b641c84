#include "worker/member/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

absl::StatusOr<LaunchEnvironment> Read(const Variables& variables) {
  return ReadLaunchEnvironment([&](absl::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "node-0"},
                             {"MASTER_PORT", "29500"}};

TEST(LaunchEnvironmentTest, WithoutALauncherAProcessIsByItself) {
  const LaunchEnvironment launch = Read({{"MASTER_ADDR", "left over"}}).value();
  EXPECT_EQ(launch.processes, 1);
  EXPECT_EQ(launch.process, 0);
}

TEST(LaunchEnvironmentTest, ReadsWhatTorchrunSets) {
  const LaunchEnvironment launch = Read(kTorchrun).value();
  EXPECT_EQ(launch.process, 5);
  EXPECT_EQ(launch.processes, 8);
  EXPECT_EQ(launch.local_process, 1);
  EXPECT_EQ(launch.local_processes, 4);
  EXPECT_EQ(launch.master_address, "node-0");
  EXPECT_EQ(launch.master_port, 29500);
}

TEST(LaunchEnvironmentTest, KeepsOffThePortOfTorchrunsOwnStore) {
  Variables variables = kTorchrun;
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(Read(variables)->master_port, 29501);
}

TEST(LaunchEnvironmentTest, NamesWhatIsMissing) {
  for (const auto& [name, value] : kTorchrun) {
    Variables variables = kTorchrun;
    variables.erase(name);
    const absl::Status status = Read(variables).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(name));
    EXPECT_THAT(status.message(), HasSubstr("is not set"));
  }
}

TEST(LaunchEnvironmentTest, SaysWhatANumberShouldBe) {
  const std::map<std::string, std::string> wrong = {{"RANK", "8"},
                                                    {"WORLD_SIZE", "0"},
                                                    {"LOCAL_RANK", "4"},
                                                    {"LOCAL_WORLD_SIZE", "9"},
                                                    {"MASTER_PORT", "http"}};
  for (const auto& [name, value] : wrong) {
    Variables variables = kTorchrun;
    variables[name] = value;
    const absl::Status status = Read(variables).status();
    EXPECT_THAT(status.message(), HasSubstr(name));
    EXPECT_THAT(status.message(), HasSubstr("is \"" + value + "\"; expected a number from"));
  }
}

TEST(LaunchEnvironmentTest, TheGpusOfAMachineAreSharedOut) {
  LaunchEnvironment launch;
  EXPECT_THAT(DevicesOfProcess(launch, {0, 1, 2, 3}).value(), ElementsAre(0, 1, 2, 3));
  launch.local_processes = 2;
  launch.local_process = 1;
  EXPECT_THAT(DevicesOfProcess(launch, {0, 1, 2, 3}).value(), ElementsAre(2, 3));
  // Slurm shows each process its own GPU alone.
  EXPECT_THAT(DevicesOfProcess(launch, {0}).value(), ElementsAre(0));
  EXPECT_THAT(DevicesOfProcess(launch, {0, 1, 2}).status().message(),
              HasSubstr("3 GPUs cannot be shared out equally to the 2 processes"));
}

}  // namespace
}  // namespace causeway::worker
