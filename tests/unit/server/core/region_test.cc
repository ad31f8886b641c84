// A region between its sites and the hub, all in one process.

#include "gmock/gmock.h"
#include "server/core/fragment_rounds.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/server/core/toy_run.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Brings deltas to the hub when it is told to, as a link does.
class ToyParent final : public Parent {
 public:
  explicit ToyParent(ToyRun& hub) : hub_(hub) {}

  void Carry(RegionDelta delta, Callback done) override {
    ++carried_;
    under_way_.push_back({std::move(delta), std::move(done)});
  }
  void Applied(int fragment, int64_t round, uint64_t published_hash) override {
    EXPECT_EQ(hub_.members().Handle("eu", welcome_.incarnation(),
                                    AppliedOf(fragment, round, published_hash)),
              absl::OkStatus());
  }

  // The region's sites are there.
  absl::Status Attach(ToyRun& region) {
    sink_ = std::make_shared<RecordingSink>();
    const RegionPlace place = region.coordinator->region()->Place();
    EXPECT_TRUE(place.ready);
    v1::Join join = hub_.MakeJoin("eu", 99);
    join.set_sites(2);
    join.set_has_checkpoint(true);
    ASSIGN_OR_RETURN(welcome_, hub_.members().Join(join, sink_));
    return hub_.members().Handle("eu", welcome_.incarnation(), ReadyAt(place.step));
  }
  absl::Status Begin(ToyRun& region) {
    const std::vector<v1::Directive> starts = sink_->Directives(v1::Directive::START);
    EXPECT_FALSE(starts.empty());
    return region.coordinator->region()->Begin(
        starts.back().data_slot(),
        {starts.back().next_draws().begin(), starts.back().next_draws().end()});
  }

  // All under way reaches the hub; `answers`: and what the hub has published comes back.
  void Deliver(bool answers = true) {
    for (size_t left = under_way_.size(); left > 0; --left) {
      Flight flight = std::move(under_way_.front());
      under_way_.pop_front();
      if (flight.delta.contributes && !flight.pushed) {
        const absl::Status pushed = Push(flight.delta);
        flight.late = absl::IsAborted(pushed);
        EXPECT_TRUE(pushed.ok() || flight.late) << pushed;
        flight.pushed = true;
      }
      under_way_.push_back(std::move(flight));
    }
    if (!answers) return;
    for (size_t left = under_way_.size(); left > 0; --left) {
      Flight flight = std::move(under_way_.front());
      under_way_.pop_front();
      hub_.rounds().PullAnswer(flight.delta.header.fragment(), flight.delta.header.round(),
                               [flight](absl::StatusOr<std::shared_ptr<const PullObject>> answer) {
                                 if (!answer.ok()) return flight.done(answer.status());
                                 const v1::PullHeader& header = (*answer)->header;
                                 flight.done(ParentAnswer{.late = flight.late,
                                                          .round = header.round(),
                                                          .codec = header.codec(),
                                                          .published_hash = header.published_hash(),
                                                          .bytes = (*answer)->bytes});
                               });
    }
  }
  // The region's process is gone.
  void Forget() { under_way_.clear(); }
  // Tells the hub of the region's place.
  absl::Status Heartbeat(const v1::Heartbeat& heartbeat) {
    v1::WorkerMessage message;
    *message.mutable_heartbeat() = heartbeat;
    return hub_.members().Handle("eu", welcome_.incarnation(), message);
  }
  int carried() const { return carried_; }
  int64_t last_tokens() const { return last_tokens_; }

 private:
  struct Flight {
    RegionDelta delta;
    Callback done;
    bool pushed = false;
    bool late = false;
  };

  absl::Status Push(const RegionDelta& delta) {
    EXPECT_EQ(delta.leaves, LeafChecksums(delta.object.view()));
    EXPECT_EQ(delta.header.object_hash(), TreeRoot(delta.leaves));
    v1::PushHeader header = delta.header;
    header.set_run_id(hub_.coordinator->run_id());
    header.set_incarnation(welcome_.incarnation());
    last_tokens_ = header.tokens();
    ASSIGN_OR_RETURN(const auto held, hub_.rounds().BeginPush(header, nullptr));
    if (held.has_value()) return absl::OkStatus();
    const absl::Status pushed = hub_.rounds().Contribute(header, delta.object).status();
    hub_.rounds().MergeDue(header.fragment());
    return pushed;
  }

  ToyRun& hub_;
  std::shared_ptr<RecordingSink> sink_;
  v1::Welcome welcome_;
  std::deque<Flight> under_way_;
  int carried_ = 0;
  int64_t last_tokens_ = 0;
};

constexpr char kThreeWorkers[] = "membership { start_workers: 3 max_workers: 4 }";

// Sites a and b in the region eu, and c at the hub.
struct Tree {
  explicit Tree(const std::string& changes = kThreeWorkers)
      : hub(changes),
        parent(hub),
        region(changes, RegionOptions{.parent = &parent, .id = "eu", .sites = 2, .above = {}}) {
    EXPECT_TRUE(a.Enter().ok());
    EXPECT_EQ(a.sink().Count(v1::Directive::START), 0);
    EXPECT_TRUE(b.Enter().ok());
    EXPECT_EQ(parent.Attach(region), absl::OkStatus());
    EXPECT_TRUE(c.Enter().ok());
    EXPECT_EQ(parent.Begin(region), absl::OkStatus());
    EXPECT_EQ(a.sink().Count(v1::Directive::START), 1);
  }

  // The region's process dies, and another one goes on.
  void RestartRegion() {
    parent.Forget();
    region.Restart();
    EXPECT_TRUE(a.Join(a.step()).ok());
    EXPECT_TRUE(b.Join(b.step()).ok());
    EXPECT_TRUE(parent.Begin(region).ok());
    region.coordinator->Tick();
  }

  // `at(place)` is called between the parts of a step.
  void Train(
      int steps, const std::function<void(int place)>& at = [](int) {}) {
    for (int i = 0; i < steps; ++i) {
      for (ToyWorker* const worker : {&a, &b, &c}) worker->Train();
      ASSERT_TRUE(a.SendDue().ok());
      at(0);
      for (ToyWorker* const worker : {&b, &c}) ASSERT_TRUE(worker->SendDue().ok());
      at(1);
      parent.Deliver(/*answers=*/false);
      at(2);
      parent.Deliver(/*answers=*/false);
      parent.Deliver();
      at(3);
      region.coordinator->Maintain();
      for (ToyWorker* const worker : {&a, &b, &c}) {
        ASSERT_EQ(worker->MergeDue(), absl::OkStatus());
      }
    }
  }

  ToyRun hub;
  ToyParent parent;
  ToyRun region;
  ToyWorker a{region, "a", 1};
  ToyWorker b{region, "b", 2};
  ToyWorker c{hub, "c", 3};
};

TEST(RegionTest, EveryReplicaOfTheTreeHasTheSameBits) {
  Tree tree;
  tree.Train(36);
  EXPECT_EQ(tree.a.published(), tree.c.published());
  EXPECT_EQ(tree.b.published(), tree.c.published());
  EXPECT_EQ(tree.region.coordinator->PublishedParameters(),
            tree.hub.coordinator->PublishedParameters());
  int64_t rounds = 0;
  for (const v1::Round& round : tree.hub.store.rounds()) {
    EXPECT_THAT(round.contributors(), ElementsAre("c", "eu"));
    EXPECT_NEAR(round.weights(1), 2.0 / 3, 1e-12);
    ++rounds;
  }
  EXPECT_EQ(rounds, 18);
  EXPECT_EQ(tree.parent.carried(), rounds);
  ASSERT_TRUE(tree.region.coordinator->Shutdown().ok());
  ASSERT_TRUE(tree.hub.coordinator->Shutdown().ok());
  EXPECT_EQ(tree.hub.store.summary().at("hash_mismatches"), 0);
  EXPECT_EQ(tree.region.store.summary().at("hash_mismatches"), 0);
  // c has not merged the last one yet.
  EXPECT_EQ(tree.hub.hash_checks(), 2 * rounds - 1);
}

TEST(RegionTest, PartsOfTheDataAreDealtInRanges) {
  Tree tree;
  // By name: c, then eu with two.
  EXPECT_EQ(tree.c.sink().Directives(v1::Directive::START).back().data_slot(), 0);
  EXPECT_EQ(tree.a.sink().Directives(v1::Directive::START).back().data_slot(), 1);
  EXPECT_EQ(tree.b.sink().Directives(v1::Directive::START).back().data_slot(), 2);
}

TEST(RegionTest, OneSiteInFp32IsTheSiteItself) {
  const std::string fp32 = "sync { codec_up: FP32 codec_down: FP32 }";
  Tree tree(absl::StrCat(fp32, kThreeWorkers));
  // Site b contributes nothing, so that the region's delta is a's.
  v1::RejectRequest order;
  order.set_worker_id("b");
  ASSERT_TRUE(tree.region.orders().Reject(order).ok());
  for (int i = 0; i < 24; ++i) {
    // Nobody waits for b: it comes before the round closes.
    TrainStep({&tree.b, &tree.a, &tree.c}, [&] { tree.parent.Deliver(); });
  }
  ToyRun flat(fp32);
  ToyWorker c(flat, "c", 3);
  ToyWorker eu(flat, "eu", 1);
  ASSERT_TRUE(c.Enter().ok());
  ASSERT_TRUE(eu.Enter().ok());
  for (int i = 0; i < 24; ++i) TrainStep({&c, &eu});
  EXPECT_EQ(eu.published(), tree.a.published());
}

// The same run, whatever the region's process goes through.
class RegionRestartTest : public testing::TestWithParam<int> {};

TEST_P(RegionRestartTest, ARestartedRegionPublishesTheSameBits) {
  Tree undisturbed;
  undisturbed.Train(36);
  Tree tree;
  int step = 0;
  tree.Train(36, [&](int place) {
    step += place == 0;
    if (place == GetParam() && step % 5 == 2) tree.RestartRegion();
  });
  EXPECT_EQ(tree.c.published(), undisturbed.c.published());
  EXPECT_EQ(tree.a.published(), undisturbed.a.published());
  EXPECT_EQ(tree.hub.store.rounds().size(), undisturbed.hub.store.rounds().size());
  for (const v1::Round& round : tree.hub.store.rounds()) {
    EXPECT_THAT(round.contributors(), ElementsAre("c", "eu"));
  }
}

INSTANTIATE_TEST_SUITE_P(Places, RegionRestartTest, testing::Values(0, 1, 2, 3));

constexpr char kWithGrace[] = "membership { start_workers: 3 max_workers: 4 grace_ms: 1000 }";

// The hub closes the next round that is sent without the region.
void BeLateOnce(Tree& tree, bool restart) {
  const size_t rounds = tree.hub.store.rounds().size();
  while (tree.hub.store.rounds().size() == rounds) {
    TrainStep({&tree.a, &tree.b, &tree.c}, [&] {
      tree.hub.coordinator->Tick();
      tree.hub.clock.Advance(absl::Seconds(2));
      tree.hub.coordinator->Tick();
      tree.parent.Deliver();
      if (restart) tree.RestartRegion();
    });
  }
}

TEST(RegionTest, ALateRegionFoldsItsDeltaIntoTheNext) {
  for (const bool restart : {false, true}) {
    Tree tree(kWithGrace);
    tree.Train(6);
    EXPECT_EQ(tree.parent.last_tokens(), 128);
    BeLateOnce(tree, restart);
    const v1::Round late = tree.hub.store.rounds().back();
    EXPECT_THAT(late.contributors(), ElementsAre("c"));
    const v1::Round own = tree.region.store.rounds().back();
    EXPECT_THAT(own.contributors(), ElementsAre("a", "b"));
    EXPECT_LT(own.weights(0), 0);
    // Until that fragment is sent again.
    while (tree.hub.store.rounds().back().fragment() != late.fragment() ||
           tree.hub.store.rounds().back().round() == late.round()) {
      tree.Train(1);
    }
    EXPECT_EQ(tree.parent.last_tokens(), 256);
    EXPECT_EQ(tree.a.published(), tree.c.published());
  }
}

TEST(RegionTest, ARoundWaitsForRoomForItsDelta) {
  Tree undisturbed;
  undisturbed.Train(12);
  Tree tree;
  int waited = 0;
  tree.Train(12, [&](int place) {
    if (place == 0) tree.region.store.full_for = "eu";
    if (place != 1) return;
    const int carried = tree.parent.carried();
    EXPECT_TRUE(tree.region.coordinator->Health().ok());
    tree.region.store.full_for.clear();
    tree.region.coordinator->Tick();
    waited += tree.parent.carried() - carried;
  });
  EXPECT_EQ(waited, 6);
  EXPECT_EQ(tree.region.events.Count("store_low"), 6);
  EXPECT_EQ(tree.c.published(), undisturbed.c.published());
  EXPECT_EQ(tree.a.published(), undisturbed.a.published());
}

TEST(RegionTest, ASiteThatIsSendingHearsOfTheCloseWhenItIsForGood) {
  Tree tree(kWithGrace);
  Rounds& region = tree.region.rounds();
  ASSERT_TRUE(tree.a.Push(0, 1).ok());
  std::vector<uint8_t> object;
  std::vector<absl::StatusCode> told;
  const v1::PushHeader header = tree.b.MakePush(0, 1, object);
  const auto closed = [&] { told.push_back(region.BeginPush(header, nullptr).status().code()); };
  ASSERT_TRUE(region.BeginPush(header, closed).ok());
  tree.region.clock.Advance(absl::Seconds(2));
  tree.region.store.full_for = "eu";
  tree.region.coordinator->Tick();
  EXPECT_TRUE(told.empty()) << "the round is open again";
  tree.region.store.full_for.clear();
  tree.region.coordinator->Tick();
  EXPECT_EQ(told, std::vector{absl::StatusCode::kAborted}) << "the parent has not answered yet";
}

TEST(RegionTest, ASiteThatBoastsDoesNotEndItsRegion) {
  Tree tree;
  for (ToyWorker* const site : {&tree.a, &tree.b}) {
    ASSERT_TRUE(site->Say(absl::StrCat("heartbeat { tokens: ", kMaxTokens, " }")).ok());
  }
  const RegionPlace place = tree.region.coordinator->region()->Place();
  // Two sites at step 0, each of which may have trained one period twice.
  EXPECT_EQ(place.heartbeat.tokens(), 2 * 6 * 64);
  EXPECT_TRUE(tree.parent.Heartbeat(place.heartbeat).ok());
}

TEST(RegionTest, TheHubKnowsTheSitesBelowARegion) {
  Tree tree;
  tree.Train(6);
  ASSERT_TRUE(tree.a
                  .Say("heartbeat { tokens: 64 step: 1 train_loss: 2.5 compute_seconds: 3 "
                       "blocked_seconds: 1 }")
                  .ok());
  RegionPlace place = tree.region.coordinator->region()->Place();
  // It boasts of more than a run may have.
  for (int i = 0; i < 100; ++i) place.heartbeat.add_sites()->set_worker_id("more");
  ASSERT_TRUE(tree.parent.Heartbeat(place.heartbeat).ok());
  const v1::RunStatus status = tree.hub.status();
  ASSERT_EQ(status.workers_size(), 2);
  EXPECT_EQ(status.workers(0).sites_size(), 0);
  const v1::WorkerStatus& region = status.workers(1);
  EXPECT_TRUE(region.region());
  ASSERT_EQ(region.sites_size(), 4) << "as many as max_workers";
  EXPECT_EQ(region.sites(0).worker_id(), tree.a.id());
  EXPECT_EQ(region.sites(0).tokens(), 64);
  EXPECT_FLOAT_EQ(static_cast<float>(region.sites(0).train_loss()), 2.5F);
  EXPECT_FLOAT_EQ(static_cast<float>(region.sites(0).compute_utilization()), 0.75F);
  EXPECT_EQ(region.sites(1).worker_id(), tree.b.id());
}

TEST(RegionTest, ASiteMustNotHaveTheRegionsName) {
  Tree tree;
  ToyWorker impostor(tree.region, "eu", 7);
  EXPECT_THAT(impostor.Join(),
              StatusIs(kInvalidArgument, HasSubstr("give the worker another --id")));
}

TEST(RegionTest, ARunCountsARegionsSites) {
  ToyRun hub(kThreeWorkers);
  v1::Join join = hub.MakeJoin("eu", 9);
  join.set_sites(5);
  EXPECT_THAT(hub.members().Join(join, std::make_shared<RecordingSink>()),
              StatusIs(kResourceExhausted, HasSubstr("fewer --sites")));
}

}  // namespace
}  // namespace causeway::server
