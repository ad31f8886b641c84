// A run that awaits its model: what it takes, what it refuses, and that it begins once.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/from_text.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/server/core/waiting_run.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

// Blocks 0 and 1, a scalar, and one tensor of more than a chunk: 524288 + 64 + 3 + 1 values.
v1::ModelHeader Header() {
  v1::ModelHeader header = FromText<v1::ModelHeader>(R"(
      run_id: "any-1" worker_id: "paris"
      tensors { tensor { name: "h.1.weight" shape: [1024, 512] }
                tensor { name: "h.0.weight" shape: [4, 4, 4] }
                tensor { name: "norm" shape: 3 }
                tensor { name: "scale" } })");
  header.set_total_bytes(4 * (524288 + 64 + 3 + 1));
  return header;
}

std::vector<float> Values() {
  std::vector<float> values(524288 + 64 + 3 + 1);
  std::iota(values.begin(), values.end(), -7.5F);
  return values;
}

std::string BytesOf(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

v1::ModelChunk Chunk(int64_t offset, const std::string& data) {
  v1::ModelChunk chunk;
  chunk.set_offset(offset);
  chunk.set_data(data);
  return chunk;
}

class ServedRunTest : public ::testing::Test {
 protected:
  WaitingRun served_{"sync { fragments: 2 }"};
  ServedRun& waiting_ = served_.run;
};

// All of Values(), in chunks, into the arena of the admitted model.
std::vector<float> Assembled(const BroughtModel& model, v1::ModelHeader header) {
  const std::vector<float> values = Values();
  header.set_tree_hash(TreeHash(values));
  ModelAssembly assembly(model, header);
  const std::string bytes = BytesOf(values);
  for (size_t at = 0; at < bytes.size(); at += kTreeLeafBytes) {
    const std::string data = bytes.substr(at, kTreeLeafBytes);
    EXPECT_EQ(assembly.Add(Chunk(static_cast<int64_t>(at), data)), absl::OkStatus());
  }
  auto arena = assembly.Finish(model.plan);
  EXPECT_EQ(arena.status(), absl::OkStatus());
  return arena.ok() ? *arena : std::vector<float>();
}

TEST_F(ServedRunTest, SaysThatItWaitsAndRefusesWhatNeedsAModel) {
  const v1::DescribeResponse description = waiting_.Describe();
  EXPECT_TRUE(description.awaits_model());
  EXPECT_EQ(description.run_id(), "any-1");
  EXPECT_FALSE(description.config().has_model() || description.config().has_tensors());
  EXPECT_EQ(description.plan_hash(), 0U);
  EXPECT_EQ(waiting_.coordinator(), nullptr);
  EXPECT_THAT(waiting_.Begun(),
              StatusIs(kFailedPrecondition, HasSubstr("waits for the first site")));
  EXPECT_TRUE(waiting_.Health().ok());
  EXPECT_EQ(waiting_.GetStatus().run_id(), "any-1");
  EXPECT_EQ(waiting_.GetStatus().fragments_size(), 0);
}

TEST_F(ServedRunTest, BeginsWithTheFirstModelAndSendsEveryOtherSiteBack) {
  const auto model = waiting_.AdmitModel(Header()).value();
  const auto second = waiting_.AdmitModel(Header()).value();
  const std::vector<float> arena = Assembled(model, Header());
  ASSERT_EQ(waiting_.BeginWith(model, arena), absl::OkStatus());
  EXPECT_THAT(waiting_.BeginWith(second, arena), StatusIs(kAlreadyExists));
  EXPECT_THAT(waiting_.AdmitModel(Header()),
              StatusIs(kAlreadyExists, HasSubstr("describe it again, and join")));
  EXPECT_EQ(served_.begins, 1);
  const v1::DescribeResponse description = waiting_.Describe();
  EXPECT_FALSE(description.awaits_model());
  EXPECT_EQ(description.config().tensors().tensor(0).name(), "h.1.weight");
  EXPECT_EQ(description.plan_hash(), waiting_.coordinator()->plan().hash());
  EXPECT_EQ(waiting_.GetStatus().fragments_size(), 3);
  // Every tensor has its values, wherever its fragment is.
  const std::vector<float> published = waiting_.coordinator()->PublishedParameters();
  const std::vector<float> values = Values();
  size_t at = 0;
  for (const char* name : {"h.1.weight", "h.0.weight", "norm", "scale"}) {
    const PlacedTensor& placed = *waiting_.coordinator()->plan().Find(name);
    for (int64_t i = 0; i < placed.info.size(); ++i, ++at) {
      ASSERT_EQ(published[static_cast<size_t>(placed.offset + i)], values[at]) << name << " " << i;
    }
  }
  EXPECT_EQ(at, values.size());
  EXPECT_EQ(waiting_.Shutdown(), absl::OkStatus());
}

TEST_F(ServedRunTest, ADiskThatFailsLeavesItWaiting) {
  served_.disk = absl::ResourceExhaustedError("the disk is full");
  const auto model = waiting_.AdmitModel(Header()).value();
  const std::vector<float> arena = Assembled(model, Header());
  EXPECT_EQ(waiting_.BeginWith(model, arena), served_.disk);
  EXPECT_TRUE(waiting_.Describe().awaits_model());
  served_.disk = absl::OkStatus();
  EXPECT_EQ(waiting_.BeginWith(model, arena), absl::OkStatus());
  EXPECT_FALSE(waiting_.Describe().awaits_model());
}

TEST_F(ServedRunTest, NothingBeginsAfterTheShutdown) {
  const auto model = waiting_.AdmitModel(Header()).value();
  EXPECT_EQ(waiting_.Shutdown(), absl::OkStatus());
  EXPECT_THAT(waiting_.BeginWith(model, {}), StatusIs(kUnavailable));
  EXPECT_EQ(served_.begins, 0);
}

TEST_F(ServedRunTest, HostileHeadersAreRefusedByName) {
  const auto refused = [&](auto change, absl::StatusCode code, const char* message) {
    v1::ModelHeader header = Header();
    change(header);
    const absl::Status status = waiting_.AdmitModel(header).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  const auto bad = kInvalidArgument;
  using H = v1::ModelHeader;
  refused([](H& h) { h.set_run_id("other-2"); }, kFailedPrecondition, "other-2");
  refused([](H& h) { h.set_worker_id("a b"); }, bad, "worker_id");
  refused([](H& h) { h.clear_tensors(); }, bad, "tensors must be 1 to");
  refused([](H& h) { h.set_total_bytes(h.total_bytes() + 4); }, bad, "total_bytes must be 4 times");
  refused([](H& h) { h.set_total_bytes(-1); }, bad, "it is -1");
  // The others are in configurations.txt.
  refused([](H& h) { *h.mutable_tensors()->add_tensor() = h.tensors().tensor(0); }, bad,
          "must be there once");
  // Two fragments of blocks need two blocks.
  refused([](H& h) { h.mutable_tensors()->mutable_tensor(0)->set_name("w"); }, bad,
          "choose pattern BALANCED");
}

TEST(WaitingCoordinatorOfATable, TakesThatTableAlone) {
  WaitingRun waiting("tensors { tensor { name: 'w' shape: 4 } }");
  auto header = FromText<v1::ModelHeader>(
      "run_id: 'any-1' worker_id: 'w' total_bytes: 16 tensors { tensor { name: 'w' shape: 4 } }");
  EXPECT_EQ(waiting.run.AdmitModel(header).status(), absl::OkStatus());
  header.mutable_tensors()->mutable_tensor(0)->set_name("v");
  EXPECT_THAT(waiting.run.AdmitModel(header),
              StatusIs(kInvalidArgument, HasSubstr("tensor 0 must be as in the run's")));
}

class ModelAssemblyTest : public ServedRunTest {
 protected:
  ModelAssembly Assembly(uint64_t hash = 0) {
    v1::ModelHeader header = Header();
    header.set_tree_hash(hash);
    return {*waiting_.AdmitModel(header), header};
  }
  void ExpectRefused(ModelAssembly& assembly, const v1::ModelChunk& chunk, const char* message) {
    EXPECT_THAT(assembly.Add(chunk), StatusIs(kInvalidArgument, HasSubstr(message)));
  }
  const std::string full_ = std::string(kTreeLeafBytes, '\0');
};

TEST_F(ModelAssemblyTest, ChunksComeWholeAndInOrder) {
  ModelAssembly assembly = Assembly();
  ExpectRefused(assembly, Chunk(4, full_), "must be 1048576 bytes at offset 0");
  ExpectRefused(assembly, Chunk(0, ""), "it is 0 at 0");
  ExpectRefused(assembly, Chunk(0, full_.substr(4)), "it is 1048572 at 0");
  ExpectRefused(assembly, Chunk(0, full_ + "1234"), "it is 1048580 at 0");
  ExpectRefused(assembly, Chunk(-4, full_), "at -4");
  EXPECT_EQ(assembly.received_bytes(), 0);
  EXPECT_EQ(assembly.Add(Chunk(0, full_)), absl::OkStatus());
  ExpectRefused(assembly, Chunk(0, full_), "at offset 1048576");
  EXPECT_EQ(assembly.Add(Chunk(1 << 20, full_)), absl::OkStatus());
  ExpectRefused(assembly, Chunk(2 << 20, full_), "must be 272 bytes at offset 2097152");
  EXPECT_EQ(assembly.Add(Chunk(2 << 20, std::string(272, '\0'))), absl::OkStatus());
  ExpectRefused(assembly, Chunk((2 << 20) + 272, "1234"), "must be 0 bytes");
}

TEST_F(ModelAssemblyTest, ValuesThatAreNotFiniteAreNamed) {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    ModelAssembly assembly = Assembly();
    EXPECT_EQ(assembly.Add(Chunk(0, full_)), absl::OkStatus());
    EXPECT_EQ(assembly.Add(Chunk(1 << 20, full_)), absl::OkStatus());
    std::string last(272, '\0');
    std::memcpy(last.data() + 4 * 65, &value, sizeof(value));
    ExpectRefused(assembly, Chunk(2 << 20, last), "the one of norm, index 1 is");
  }
}

TEST_F(ModelAssemblyTest, APartAndADamagedWholeDoNotBecomeAModel) {
  ModelAssembly part = Assembly(TreeHash(Values()));
  const auto model = waiting_.AdmitModel(Header());
  EXPECT_EQ(part.Add(Chunk(0, full_)), absl::OkStatus());
  EXPECT_THAT(part.Finish(model->plan), StatusIs(kInvalidArgument));
  ModelAssembly damaged = Assembly(TreeHash(Values()));
  EXPECT_EQ(damaged.Add(Chunk(0, full_)), absl::OkStatus());
  EXPECT_EQ(damaged.Add(Chunk(1 << 20, full_)), absl::OkStatus());
  EXPECT_EQ(damaged.Add(Chunk(2 << 20, std::string(272, '\0'))), absl::OkStatus());
  EXPECT_THAT(damaged.Finish(model->plan), StatusIs(kDataLoss, HasSubstr("bring it again")));
}

}  // namespace
}  // namespace causeway::server
