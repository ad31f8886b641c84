#include "worker/model/worker_checkpoint.h"

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/params/fragment_plan.h"
#include "common/params/run_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/base/temporary_folder.h"
#include "tests/unit/worker/model/same_checkpoint.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

WorkerCheckpoint SomeCheckpoint() {
  WorkerCheckpoint checkpoint;
  checkpoint.run_id = "run-1";
  checkpoint.worker_id = "a";
  checkpoint.config = ParseRunConfig(
                          "model { layers: 2 width: 16 heads: 2 mlp_width: 24 vocabulary_size: 64 "
                          "sequence_length: 8 } sync { fragments: 2 }",
                          "test")
                          .value();
  EXPECT_TRUE(CompleteRunConfig(checkpoint.config).ok());
  const FragmentPlan plan = FragmentPlan::Create(checkpoint.config).value();
  const auto values = static_cast<size_t>(plan.arena_size());
  checkpoint.data_slot = 3;
  checkpoint.step = 70;
  checkpoint.tokens = 560;
  checkpoint.pace_milli = 2080;
  checkpoint.pace_carry_milli = 560;
  checkpoint.config.mutable_membership()->set_max_pace(4);
  checkpoint.optimizer_updates = 40;
  checkpoint.parameters.assign(values, 0.5F);
  checkpoint.first_moments.assign(values, 0.25F);
  checkpoint.second_moments.assign(values, 0.125F);
  checkpoint.sync.published.assign(values, -1.0F);
  checkpoint.sync.residual.assign(values, 2.0F);
  checkpoint.sync.next_draw = 102;
  checkpoint.sync.fragments.resize(3);
  checkpoint.sync.fragments[1] = {.version = 0,
                                  .tokens = 8,
                                  .draws = {{3, 100, 102}},
                                  .round_in_flight = 1,
                                  .tokens_in_flight = 400,
                                  .draws_in_flight = {{1, 7, 9}, {3, 0, 100}},
                                  .object_in_flight = {1, 2, 3},
                                  .held = {0.5F, -2}};
  return checkpoint;
}

class WorkerCheckpointTest : public ::testing::Test {
 protected:
  absl::StatusOr<WorkerCheckpoint> WriteAndRead(const WorkerCheckpoint& checkpoint) {
    const std::string path = JoinPath(folder_.path(), "checkpoint");
    EXPECT_TRUE(WriteWorkerCheckpoint(*FileSystem::Real(), path, checkpoint).ok());
    return ReadWorkerCheckpoint(*FileSystem::Real(), path);
  }

  TemporaryFolder folder_;
};

TEST_F(WorkerCheckpointTest, ComesBackAsItWas) {
  const WorkerCheckpoint written = SomeCheckpoint();
  EXPECT_TRUE(Same(WriteAndRead(written).value(), written));
}

TEST_F(WorkerCheckpointTest, ContentThatDoesNotFitItsConfigurationIsRefused) {
  const auto refused = [&](const std::function<void(WorkerCheckpoint&)>& change,
                           const std::string& saying) {
    WorkerCheckpoint checkpoint = SomeCheckpoint();
    change(checkpoint);
    EXPECT_THAT(WriteAndRead(checkpoint), StatusIs(kDataLoss, HasSubstr(saying))) << saying;
  };
  refused([](WorkerCheckpoint& c) { c.parameters.push_back(0); }, "parameters");
  refused([](WorkerCheckpoint& c) { c.first_moments.push_back(0); }, "first_moments");
  refused([](WorkerCheckpoint& c) { c.second_moments.clear(); }, "second_moments");
  refused([](WorkerCheckpoint& c) { c.sync.published.pop_back(); }, "published");
  refused([](WorkerCheckpoint& c) { c.sync.residual.resize(1); }, "residual");
  refused([](WorkerCheckpoint& c) { c.step = -1; }, "step");
  refused([](WorkerCheckpoint& c) { c.step = c.config.train().steps() + 1; }, "step");
  refused([](WorkerCheckpoint& c) { c.tokens = -1; }, "tokens");
  refused([](WorkerCheckpoint& c) { c.pace_milli = 999; }, "pace");
  refused([](WorkerCheckpoint& c) { c.pace_milli = 4001; }, "pace");
  refused([](WorkerCheckpoint& c) { c.pace_carry_milli = 1000; }, "pace");
  refused([](WorkerCheckpoint& c) { c.pace_carry_milli = -1; }, "pace");
  refused([](WorkerCheckpoint& c) { c.optimizer_updates = -1; }, "updates");
}

TEST_F(WorkerCheckpointTest, AConfigurationOutOfRangeIsRefused) {
  WorkerCheckpoint checkpoint = SomeCheckpoint();
  checkpoint.config.mutable_model()->set_heads(-3);
  EXPECT_THAT(WriteAndRead(checkpoint), StatusIs(kInvalidArgument, HasSubstr("model.heads")));
}

TEST_F(WorkerCheckpointTest, WithoutResidualOrMomentsItIsWhole) {
  WorkerCheckpoint checkpoint = SomeCheckpoint();
  checkpoint.sync.residual.clear();
  EXPECT_TRUE(WriteAndRead(checkpoint)->sync.residual.empty());
  v1::SyncConfig& sync = *checkpoint.config.mutable_sync();
  checkpoint.config.mutable_membership()->clear_max_pace();
  checkpoint.pace_milli = 1000;
  sync.set_contribution(v1::SyncConfig::GRADIENT);
  sync.set_fragments(1);
  sync.set_steps_between_syncs(1);
  checkpoint.config.mutable_outer()->Clear();
  checkpoint.config.mutable_outer()->set_optimizer(v1::OuterConfig::ADAMW);
  ASSERT_TRUE(CompleteRunConfig(checkpoint.config).ok());
  const size_t values = static_cast<size_t>(
      FragmentPlan::Create(RunTensors(checkpoint.config), sync).value().arena_size());
  checkpoint.parameters.resize(values);
  checkpoint.sync.published.resize(values);
  checkpoint.first_moments.clear();
  checkpoint.second_moments.clear();
  const absl::StatusOr<WorkerCheckpoint> read = WriteAndRead(checkpoint);
  EXPECT_TRUE(read.ok()) << read.status();
}

std::vector<uint8_t> Pack(const WorkerCheckpoint& checkpoint) {
  std::vector<uint8_t> bytes;
  const absl::Status packed = PackSiteState(checkpoint, [&](size_t size) {
    bytes.resize(size);
    return bytes.data();
  });
  EXPECT_TRUE(packed.ok()) << packed;
  return bytes;
}

WorkerCheckpoint SomeSiteState() {
  WorkerCheckpoint state = SomeCheckpoint();
  state.parameters.clear();
  state.first_moments.clear();
  state.second_moments.clear();
  state.optimizer_updates = 0;
  return state;
}

TEST(SiteStateTest, ComesBackAsItWasWithAndWithoutParameters) {
  WorkerCheckpoint state = SomeSiteState();
  for (const bool with_parameters : {false, true}) {
    if (with_parameters) state.parameters.assign(state.sync.published.size(), 3.0F);
    EXPECT_TRUE(Same(UnpackSiteState(Pack(state)).value(), state));
  }
}

TEST(SiteStateTest, AnotherLengthAnyChangedByteAndOtherKindsAreRefused) {
  const std::vector<uint8_t> bytes = Pack(SomeSiteState());
  EXPECT_FALSE(UnpackSiteState({}).ok());
  EXPECT_FALSE(UnpackSiteState(std::span(bytes).first(bytes.size() - 1)).ok());
  for (size_t i = 0; i < bytes.size(); i += 97) {
    std::vector<uint8_t> damaged = bytes;
    damaged[i] ^= 0x10;
    EXPECT_FALSE(UnpackSiteState(damaged).ok()) << i;
  }
  WorkerCheckpoint with_moments = SomeCheckpoint();
  EXPECT_THAT(std::string(UnpackSiteState(Pack(with_moments)).status().message()),
              HasSubstr("first_moments"));
  TemporaryFolder folder;
  const std::string path = JoinPath(folder.path(), "checkpoint");
  ASSERT_TRUE(WriteWorkerCheckpoint(*FileSystem::Real(), path, SomeCheckpoint()).ok());
  const std::string other = FileSystem::Real()->ReadFile(path).value();
  EXPECT_THAT(
      std::string(UnpackSiteState({reinterpret_cast<const uint8_t*>(other.data()), other.size()})
                      .status()
                      .message()),
      HasSubstr("does not begin with CWAYSITE"));
}

TEST(SiteStateTest, NoMemoryIsAnError) {
  EXPECT_THAT(PackSiteState(SomeSiteState(), [](size_t) -> uint8_t* { return nullptr; }),
              StatusIs(kResourceExhausted));
}

}  // namespace
}  // namespace causeway::worker
