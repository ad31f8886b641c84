// Coordinators that have parts of a run, in one process, without what is between them.
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"
#include "common/params/initialize.h"
#include "common/transfer/wire.h"
#include "gtest/gtest.h"
#include "server/core/coordinator.h"
#include "server/core/shards.h"
#include "server/store/memory_store.h"
#include "tests/unit/server/shards/four_fragments.h"

namespace causeway::server {
namespace {

class NoSink final : public SessionSink {
 public:
  void Send(const v1::CoordinatorMessage&) override {}
  void Close(const absl::Status& status) override { end = status; }
  absl::Status end;
};

// The lead's only shard, which hears at once, unless it is cut off.
class DirectShard final : public Shards {
 public:
  absl::Status Complete() const override { return absl::OkStatus(); }
  std::vector<v1::Shard> Where() const override {
    v1::Shard at;
    at.set_name("shard");
    at.add_fragments(1);
    at.add_fragments(3);
    return {at};
  }
  void Tell(const v1::ShardRoster& roster, bool) override {
    if (shard == nullptr || cut) return;
    ASSERT_TRUE(shard->FollowLead(roster).ok());
  }
  void Call(int, v1::ShardCall call, std::function<void(const absl::Status&)> done) override {
    done(shard->AnswerLead(call));
  }
  Coordinator* shard = nullptr;
  bool cut = false;
};

class PartTest : public testing::Test {
 protected:
  PartTest()
      : plan_(FragmentPlan::Create(config_).value()),
        whole_(Make({0, 1, 2, 3}, std::nullopt, whole_store_)),
        shard_(Make({1, 3}, PartOptions{.fragments = {1, 3}}, shard_store_)),
        lead_(Make({0, 2}, PartOptions{.fragments = {0, 2}, .shards = &link_}, lead_store_)) {
    link_.shard = shard_.get();
  }

  std::unique_ptr<Coordinator> Make(const std::vector<int>& fragments,
                                    std::optional<PartOptions> part, MemoryStore& store,
                                    std::optional<RecoveredRun> recovered = std::nullopt) {
    Coordinator::Options options;
    options.config = config_;
    options.run_id = "run-1";
    options.part = std::move(part);
    for (const int fragment : fragments) {
      const FragmentRange& range = plan_.range(fragment);
      std::vector<float> values(static_cast<size_t>(range.size()));
      InitializeRange(plan_, 3, range.begin, values);
      options.initial_parameters.insert(options.initial_parameters.end(), values.begin(),
                                        values.end());
    }
    options.clock = &clock_;
    options.store = &store;
    options.recovered = std::move(recovered);
    absl::StatusOr<std::unique_ptr<Coordinator>> made = Coordinator::Create(std::move(options));
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }

  static absl::Status Enter(Coordinator& coordinator, const std::string& id,
                            const std::shared_ptr<NoSink>& sink) {
    const v1::DescribeResponse run = coordinator.Describe();
    v1::Join join;
    join.set_worker_id(id);
    join.set_run_id(run.run_id());
    join.set_wire_version(kWireVersion);
    join.set_config_hash(run.config_hash());
    join.set_plan_hash(run.plan_hash());
    join.set_data_vocabulary_size(128);
    join.set_process_nonce(id[0]);
    const absl::StatusOr<v1::Welcome> welcome = coordinator.Join(join, sink);
    if (!welcome.ok()) return welcome.status();
    v1::WorkerMessage ready;
    ready.mutable_ready()->set_step(welcome->run_step());
    return coordinator.Handle(id, welcome->incarnation(), ready);
  }

  void EnterBoth() {
    for (const char* const id : {"a", "b"}) {
      ASSERT_TRUE(Enter(*whole_, id, std::make_shared<NoSink>()).ok());
      ASSERT_TRUE(Enter(*lead_, id, sink_).ok());
    }
  }

  absl::Status Push(Coordinator& coordinator, const std::string& id, int fragment, int64_t round) {
    const auto state = coordinator.PullState(fragment);
    if (!state.ok()) return state.status();
    std::vector<float> base((*state)->bytes.size() / sizeof(float));
    std::memcpy(base.data(), (*state)->bytes.data(), (*state)->bytes.size());
    std::vector<float> local = base;
    for (size_t i = 0; i < local.size(); ++i) {
      local[i] += 0.01F * static_cast<float>(RandomNormal(static_cast<uint64_t>(id[0]),
                                                          static_cast<uint64_t>(round), i));
    }
    const Codec& codec = **FindCodec(v1::INT4);
    std::vector<uint8_t> object(codec.EncodedBytes(local.size()));
    EXPECT_TRUE(codec.Encode(base, local, {}, object).ok());
    v1::PushHeader header;
    header.set_run_id("run-1");
    header.set_worker_id(id);
    header.set_incarnation(1);
    header.set_fragment(fragment);
    header.set_round(round);
    header.set_codec(v1::INT4);
    header.set_total_bytes(std::ssize(object));
    header.set_object_hash(TreeHash(object));
    header.set_tokens(id == "a" ? 64 : 32);
    header.set_epoch(1);
    const absl::Status pushed =
        coordinator.Contribute(header, ReceivedObject(std::move(object))).status();
    coordinator.MergeDue(fragment);
    return pushed;
  }

  Coordinator& Owner(int fragment) { return fragment % 2 == 0 ? *lead_ : *shard_; }
  static v1::FragmentStatus Status(Coordinator& coordinator, int fragment) {
    const v1::RunStatus status = coordinator.GetStatus();
    for (const v1::FragmentStatus& entry : status.fragments()) {
      if (entry.fragment() == fragment) return entry;
    }
    return {};
  }

  const v1::RunConfig config_ = FourFragments(2);
  const FragmentPlan plan_;
  FakeClock clock_;
  MemoryStore whole_store_;
  MemoryStore shard_store_;
  MemoryStore lead_store_;
  DirectShard link_;
  std::shared_ptr<NoSink> sink_ = std::make_shared<NoSink>();
  std::unique_ptr<Coordinator> whole_;
  std::unique_ptr<Coordinator> shard_;
  std::unique_ptr<Coordinator> lead_;
};

TEST_F(PartTest, PartsPublishTheBitsOfTheWhole) {
  EnterBoth();
  for (int64_t round = 1; round <= 3; ++round) {
    for (int fragment = 0; fragment < 4; ++fragment) {
      for (const char* const id : {"b", "a"}) {
        const absl::Status pushed = Push(Owner(fragment), id, fragment, round);
        ASSERT_TRUE(pushed.ok()) << pushed;
        ASSERT_TRUE(Push(*whole_, id, fragment, round).ok());
      }
      const v1::FragmentStatus part = Status(Owner(fragment), fragment);
      EXPECT_EQ(part.published_version(), round);
      EXPECT_EQ(part.published_hash(), Status(*whole_, fragment).published_hash());
    }
  }
}

// Another process may have its fragments by then: what it took would be lost.
TEST_F(PartTest, AShardTakesNothingBeforeItHasHeardItsLeadNorWithoutIt) {
  EXPECT_TRUE(absl::IsUnavailable(shard_->PullState(1).status()));
  EnterBoth();
  ASSERT_TRUE(Push(*shard_, "a", 1, 1).ok());
  shard_->LoseLead();
  EXPECT_TRUE(absl::IsUnavailable(Push(*shard_, "b", 1, 1)));
  ASSERT_TRUE(shard_->FollowLead(lead_->Roster()).ok());
  ASSERT_TRUE(Push(*shard_, "b", 1, 1).ok());
  EXPECT_EQ(Status(*shard_, 1).published_version(), 1);
}

TEST_F(PartTest, AShardWithoutItsLeadClosesNoRound) {
  EnterBoth();
  ASSERT_TRUE(Push(*shard_, "a", 1, 1).ok());
  link_.cut = true;
  v1::WorkerMessage message;
  message.mutable_leave()->set_reason(v1::Leave::DRAINED);
  ASSERT_TRUE(lead_->Handle("b", 1, message).ok());
  ASSERT_TRUE(shard_->FollowLead(lead_->Roster()).ok());  // Nobody else is waited for.
  shard_->LoseLead();
  shard_->Tick();
  EXPECT_EQ(Status(*shard_, 1).published_version(), 0);
  ASSERT_TRUE(shard_->FollowLead(lead_->Roster()).ok());
  shard_->Tick();
  EXPECT_EQ(Status(*shard_, 1).published_version(), 1);
}

// Its stream may stand and carry nothing: the lead gives it up after a while, and goes on.
TEST_F(PartTest, AShardThatHasHeardNoRosterForAWhileTakesNothing) {
  EnterBoth();
  ASSERT_TRUE(Push(*shard_, "a", 1, 1).ok());
  link_.cut = true;
  clock_.Advance(kLeadSilence);
  EXPECT_TRUE(absl::IsUnavailable(Push(*shard_, "b", 1, 1)));
  ASSERT_TRUE(shard_->FollowLead(lead_->Roster()).ok());
  clock_.Advance(kLeadSilence - absl::Milliseconds(1));
  ASSERT_TRUE(Push(*shard_, "b", 1, 1).ok());
  EXPECT_EQ(Status(*shard_, 1).published_version(), 1);
}

TEST_F(PartTest, AWorkerThatAShardHasNotHeardOfTriesAgain) {
  link_.cut = true;
  ASSERT_TRUE(shard_->FollowLead(lead_->Roster()).ok());
  EnterBoth();
  EXPECT_TRUE(absl::IsUnavailable(Push(*shard_, "a", 1, 1)));
  v1::PushHeader later;
  later.set_run_id("run-1");
  later.set_worker_id("a");
  later.set_epoch(2);
  EXPECT_TRUE(absl::IsUnavailable(shard_->BeginPush(later, nullptr).status()));
  ASSERT_TRUE(shard_->FollowLead(lead_->Roster()).ok());
  EXPECT_TRUE(Push(*shard_, "a", 1, 1).ok());
}

TEST_F(PartTest, AnOldCopyOfTheLeadIsNotFollowed) {
  EnterBoth();
  v1::ShardRoster roster = lead_->Roster();
  roster.set_epoch(2);
  ASSERT_TRUE(shard_->FollowLead(roster).ok());
  const absl::Status old = shard_->FollowLead(lead_->Roster());
  EXPECT_TRUE(absl::IsFailedPrecondition(old)) << old;
}

TEST_F(PartTest, TwoLeadsOfOneEpochAreNotFollowed) {
  v1::ShardRoster roster = lead_->Roster();
  roster.set_process_nonce(1);
  ASSERT_TRUE(shard_->FollowLead(roster).ok());
  ASSERT_TRUE(shard_->FollowLead(roster).ok());
  roster.set_process_nonce(2);
  const absl::Status second = shard_->FollowLead(roster);
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_NE(second.message().find("two processes lead"), std::string::npos) << second;
  roster.set_epoch(2);  // The next one that serves the folder.
  EXPECT_TRUE(shard_->FollowLead(roster).ok());
}

TEST_F(PartTest, AShardTakesNoSessionsAndNobodyElsesFragments) {
  EnterBoth();
  EXPECT_TRUE(absl::IsFailedPrecondition(Enter(*shard_, "c", std::make_shared<NoSink>())));
  EXPECT_TRUE(absl::IsFailedPrecondition(Push(*shard_, "a", 0, 1)));
  EXPECT_TRUE(absl::IsFailedPrecondition(Push(*lead_, "a", 1, 1)));
}

TEST_F(PartTest, AWorkerWithOtherValuesThanAShardHasIsExpelled) {
  EnterBoth();
  v1::WorkerMessage message;
  message.mutable_applied()->set_fragment(3);
  message.mutable_applied()->set_round(0);
  message.mutable_applied()->set_published_hash(Status(*shard_, 3).published_hash());
  ASSERT_TRUE(lead_->Handle("a", 1, message).ok());
  EXPECT_TRUE(sink_->end.ok());
  message.mutable_applied()->set_published_hash(1);
  ASSERT_TRUE(lead_->Handle("b", 1, message).ok());
  EXPECT_TRUE(absl::IsDataLoss(sink_->end)) << sink_->end;
  EXPECT_EQ(shard_->Accounts().hash_checks(), 2);
  EXPECT_EQ(shard_->Accounts().hash_mismatches(), 1);
}

TEST_F(PartTest, AnOrderToRejectReachesTheShard) {
  EnterBoth();
  v1::RejectRequest order;
  order.set_worker_id("a");
  ASSERT_TRUE(lead_->Reject(order).ok());
  ASSERT_TRUE(Push(*shard_, "a", 1, 1).ok());
  EXPECT_EQ(Status(*shard_, 1).quarantined_size(), 1);
  order.set_fragment(3);
  order.set_round(-1);
  EXPECT_FALSE(lead_->Reject(order).ok());
}

TEST_F(PartTest, APartIsRecoveredWithItsFragmentsAndRefusedWithOthers) {
  EnterBoth();
  for (const char* const id : {"a", "b"}) ASSERT_TRUE(Push(*shard_, id, 3, 1).ok());
  const uint64_t published = Status(*shard_, 3).published_hash();
  Coordinator::Options other;
  other.config = config_;
  other.run_id = "run-1";
  other.part = PartOptions{.fragments = {1, 2}};
  other.clock = &clock_;
  other.store = &shard_store_;
  other.recovered = shard_store_.Recover().value();
  const absl::Status refused = Coordinator::Create(std::move(other)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  shard_ =
      Make({1, 3}, PartOptions{.fragments = {1, 3}}, shard_store_, shard_store_.Recover().value());
  link_.shard = shard_.get();
  ASSERT_TRUE(shard_->FollowLead(lead_->Roster()).ok());
  EXPECT_EQ(Status(*shard_, 3).published_hash(), published);
  for (const char* const id : {"a", "b"}) ASSERT_TRUE(Push(*shard_, id, 3, 2).ok());
  EXPECT_EQ(Status(*shard_, 3).published_version(), 2);
}

}  // namespace
}  // namespace causeway::server
