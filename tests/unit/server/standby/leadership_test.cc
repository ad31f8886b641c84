// Leaders and copies with a registry, a clock and links that the test owns.
#include "server/standby/leadership.h"

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/fake_clock.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Keeps what etcd would.
struct SharedRecord {
  FakeClock clock;
  RegistryView view;
  int64_t revision = 0;
  int64_t lease = 0;  // Lease of the leader.
  std::map<int64_t, absl::Duration> leases;
  std::vector<std::function<bool()>> on_their_way;  // Changes that come late.

  void Expire() {
    std::erase_if(leases, [&](const auto& item) { return item.second <= clock.Monotonic(); });
    if (!view.leader.empty() && !leases.contains(lease)) {
      view.leader.clear();
      view.address.clear();
      view.leader_revision = 0;
    }
  }
};

class FakeRegistry final : public Registry {
 public:
  explicit FakeRegistry(SharedRecord& record) : record_(record) {}
  // How the next calls end: as they should, not at all, made and unanswered, or made at last when
  // nobody expects it any more.
  enum Link { kUp, kDown, kLosesAnswers, kDelays };
  Link link = kUp;

  absl::StatusOr<RegistryView> Read() override {
    if (link != kUp) return Away();
    record_.Expire();
    return record_.view;
  }
  absl::StatusOr<bool> Lead(const RegistryView& seen, const std::string& name,
                            const std::string& address, absl::Duration ttl) override {
    if (link == kDown || link == kDelays) return Away();
    record_.Expire();
    if (!record_.view.leader.empty() || record_.view.set_revision != seen.set_revision)
      return false;
    ttl_ = ttl;
    lease_ = record_.lease = ++record_.revision;
    record_.leases[lease_] = record_.clock.Monotonic() + ttl;
    record_.view = {.cluster = {},
                    .leader = name,
                    .address = address,
                    .leader_revision = record_.revision,
                    .in_sync = {name},
                    .set_revision = record_.revision};
    return Answer(true);
  }
  absl::Status KeepAlive() override {
    if (link == kDown || link == kDelays) return Away();
    record_.Expire();
    const auto found = record_.leases.find(lease_);
    if (found == record_.leases.end()) return absl::FailedPreconditionError("the lease has ended");
    found->second = record_.clock.Monotonic() + ttl_;
    return Answer(true).status();
  }
  absl::StatusOr<bool> ChangeSet(const RegistryView& seen,
                                 const std::set<std::string>& names) override {
    if (link == kDown) return Away();
    const auto change = [&record = record_, seen, names] {
      record.Expire();
      if (record.view.leader_revision != seen.leader_revision ||
          record.view.set_revision != seen.set_revision) {
        return false;
      }
      record.view.in_sync = names;
      record.view.set_revision = ++record.revision;
      return true;
    };
    if (link != kDelays) return Answer(change());
    record_.on_their_way.emplace_back(change);
    return Away();
  }
  void Resign() override { record_.leases.erase(lease_); }

 private:
  static absl::Status Away() { return absl::UnavailableError("no answer"); }
  absl::StatusOr<bool> Answer(bool value) const {
    if (link == kLosesAnswers) return Away();
    return value;
  }
  SharedRecord& record_;
  int64_t lease_ = 0;
  absl::Duration ttl_;
};

// One machine's coordinator while it leads.
struct Leader {
  Leader(SharedRecord& record, std::string name, int64_t has)
      : commits(has),
        registry(record),
        standbys({.clock = &record.clock}),
        leadership(registry, standbys,
                   {.name = name,
                    .address = name + ":7070",
                    .patience = absl::Seconds(1),
                    .clock = &record.clock}) {
    standbys.Begin(has);
  }
  // Whether commit n may be told at once.
  bool Tells(int64_t n) { return standbys.MayTell().ok() && standbys.IsHeld(n); }
  int64_t commits;
  FakeRegistry registry;
  Standbys standbys;
  Leadership leadership;
};

class LeadershipTest : public testing::Test {
 protected:
  void Pass(Leader& leader, absl::Duration time) {
    for (absl::Duration passed; passed < time; passed += absl::Milliseconds(100)) {
      record_.clock.Advance(absl::Milliseconds(100));
      leader.leadership.Tick();
    }
  }
  SharedRecord record_;
};

// Coordinator a leads, and has ten commits.
class LeadingTest : public LeadershipTest {
 protected:
  LeadingTest() { EXPECT_TRUE(a.leadership.Take().ok()); }
  Leader a{record_, "a", 10};
};

TEST_F(LeadershipTest, ANewRunIsLedByWhoServesIt) {
  Leader a(record_, "a", 0);
  ASSERT_TRUE(a.leadership.Take().ok());
  EXPECT_EQ(record_.view.leader, "a");
  EXPECT_THAT(record_.view.in_sync, ElementsAre("a"));
  a.commits = 10;
  EXPECT_TRUE(a.Tells(10));  // It is alone, and the registry says so.
  Pass(a, absl::Minutes(1));
  EXPECT_TRUE(a.Tells(10));
}

TEST_F(LeadingTest, ACopyIsAskedForEveryFactBeforeItIsInTheSet) {
  const int64_t stream = a.standbys.Attach("b", 9);
  a.leadership.Tick();
  EXPECT_THAT(record_.view.in_sync, ElementsAre("a"));  // It lacks what was told.
  EXPECT_FALSE(a.Tells(10));
  a.standbys.Acknowledge(stream, 10);
  a.leadership.Tick();
  EXPECT_THAT(record_.view.in_sync, ElementsAre("a", "b"));
  a.commits = 11;
  EXPECT_FALSE(a.Tells(11));
  a.standbys.Acknowledge(stream, 11);
  EXPECT_TRUE(a.Tells(11));
}

TEST_F(LeadingTest, NobodyGoesOnWithoutACopyBeforeTheSetSaysSo) {
  const int64_t stream = a.standbys.Attach("b", 10);
  a.leadership.Tick();
  ASSERT_THAT(record_.view.in_sync, ElementsAre("a", "b"));
  a.standbys.Detach(stream);
  a.commits = 11;
  a.standbys.Begin(11);  // Somebody waits for it.
  a.registry.link = FakeRegistry::kDown;
  Pass(a, absl::Seconds(2));
  EXPECT_FALSE(a.Tells(11));
  a.registry.link = FakeRegistry::kUp;
  Pass(a, absl::Milliseconds(500));
  EXPECT_THAT(record_.view.in_sync, ElementsAre("a"));
  EXPECT_TRUE(a.Tells(11));
}

TEST_F(LeadingTest, AChangeWhoseAnswerIsLostIsLookedUp) {
  a.standbys.Attach("b", 10);
  a.registry.link = FakeRegistry::kLosesAnswers;
  a.leadership.Tick();
  EXPECT_THAT(record_.view.in_sync, ElementsAre("a", "b"));
  a.commits = 11;
  EXPECT_FALSE(a.Tells(11));  // Perhaps b is in the set: it is asked for.
  a.registry.link = FakeRegistry::kUp;
  a.leadership.Tick();
  EXPECT_FALSE(a.Tells(11));
}

TEST_F(LeadingTest, AChangeThatComesLateIsVoid) {
  const int64_t stream = a.standbys.Attach("b", 10);
  a.registry.link = FakeRegistry::kDelays;
  a.leadership.Tick();
  ASSERT_EQ(record_.on_their_way.size(), 1);  // b comes in, some day.
  EXPECT_FALSE(a.Tells(11));
  a.registry.link = FakeRegistry::kUp;
  a.standbys.Detach(stream);
  a.leadership.Tick();
  a.leadership.Tick();
  EXPECT_TRUE(a.Tells(11));  // Without b,
  EXPECT_FALSE(record_.on_their_way[0]());
  EXPECT_THAT(record_.view.in_sync, ElementsAre("a"));  // which therefore never comes to lead.
}

TEST_F(LeadingTest, WithoutTheRegistryALeaderEndsBeforeItsLeaseDoes) {
  Pass(a, absl::Seconds(10));
  a.registry.link = FakeRegistry::kDown;
  while (a.standbys.MayTell().ok()) Pass(a, absl::Milliseconds(100));
  record_.Expire();
  EXPECT_EQ(record_.view.leader, "a");  // Its lease lasts still.
  EXPECT_THAT(a.standbys.closed().message(), HasSubstr("leads no more"));
  // It does not come back.
  a.registry.link = FakeRegistry::kUp;
  Pass(a, absl::Seconds(1));
  EXPECT_FALSE(a.standbys.MayTell().ok());
}

TEST_F(LeadingTest, AClockThatStoodStillIsEnough) {
  // The leader's process was stopped for longer than its lease: nothing is told when it wakes up,
  // though nobody has ticked yet.
  record_.clock.Advance(absl::Seconds(10));
  EXPECT_FALSE(a.standbys.MayTell().ok());
  a.leadership.Tick();
  EXPECT_FALSE(a.standbys.closed().ok());
}

TEST_F(LeadingTest, OnlyACopyOfTheSetTakesTheLead) {
  a.standbys.Attach("b", 10);
  a.leadership.Tick();
  Leader b(record_, "b", 10);
  Leader c(record_, "c", 10);
  EXPECT_THAT(b.leadership.Take().message(), HasSubstr("a at a:7070 leads this run: follow it"));
  record_.clock.Advance(absl::Seconds(4));
  EXPECT_THAT(c.leadership.Take().message(), HasSubstr("only these have all of it: a, b"));
  ASSERT_TRUE(b.leadership.Take().ok());
  EXPECT_THAT(record_.view.in_sync, ElementsAre("b"));
  // The former one is told so, and may not serve.
  a.leadership.Tick();
  EXPECT_FALSE(a.standbys.closed().ok());
  Leader again(record_, "a", 10);
  const absl::Status taken = again.leadership.Take();
  EXPECT_EQ(taken.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(taken.message(), HasSubstr("b at b:7070 leads this run: follow it"));
  record_.clock.Advance(absl::Seconds(4));
  EXPECT_THAT(again.leadership.Take().message(), HasSubstr("only these have all of it: b"));
}

// Many lives of three machines under cuts, crashes and lost answers: at no time do two tell, and
// what was told is in every copy that leads later.
class Life {
 public:
  // `careless`: a planted bug, a leader that goes on before the set says so.
  Life(uint64_t seed, bool careless) : seed_(seed), careless_(careless) {}

  // The first promise that was broken; empty: none.
  std::string Run() {
    for (int i = 0; i < 3; ++i) has_.push_back(i == 0 ? 1 : 0);
    registries_.resize(3);
    for (auto& registry : registries_) registry = std::make_unique<FakeRegistry>(record_);
    for (int event = 0; event < 400 && broken_.empty(); ++event) Step();
    return broken_;
  }

 private:
  static std::string Name(size_t i) { return std::string(1, static_cast<char>('a' + i)); }
  uint64_t Draw(uint64_t below) { return RandomBits(seed_, 1, draws_++) % below; }

  void Step() {
    record_.clock.Advance(absl::Milliseconds(static_cast<int64_t>(50 + Draw(300))));
    const size_t i = Draw(3);
    const uint64_t what = Draw(20);
    if (what < 2) links_[i] = Draw(2) == 0;  // Between this copy and whom it follows.
    if (what == 2) registry_links_[i] = static_cast<FakeRegistry::Link>(Draw(4));
    if (what == 3) leaders_.erase(i);  // The process dies.
    if (what == 8) {
      for (const auto& change : std::exchange(record_.on_their_way, {})) change();
    }
    if (what >= 4 && what < 8) registry_links_[i] = FakeRegistry::kUp;
    for (size_t j = 0; j < 3; ++j) {
      registries_[j]->link = registry_links_[j];
      if (leaders_.contains(j)) leaders_.at(j)->registry.link = registry_links_[j];
    }
    for (auto& [j, leader] : leaders_) leader->leadership.Tick();
    std::erase_if(leaders_, [](const auto& item) { return !item.second->standbys.closed().ok(); });
    Follow(i);
    if (!leaders_.contains(i) && Draw(3) == 0) TryToLead(i);
    Tell();
  }

  // Copy i takes what its leader has, if it can.
  void Follow(size_t i) {
    if (leaders_.contains(i) || !links_[i]) return;
    for (auto& [j, leader] : leaders_) {
      // A copy follows who it can reach; the prefix rule is the run copy's (a longer one is
      // refused).
      if (has_[i] > leader->commits || histories_[i] > histories_[j]) continue;
      histories_[i] = histories_[j];
      has_[i] = leader->commits;
      leader->standbys.Acknowledge(leader->standbys.Attach(Name(i), has_[i]), has_[i]);
    }
  }

  void TryToLead(size_t i) {
    auto leader = std::make_unique<Leader>(record_, Name(i), has_[i]);
    leader->registry.link = registry_links_[i];
    if (has_[i] == 0 || !leader->leadership.Take().ok()) return;
    if (has_[i] < told_) {
      broken_ = absl::StrCat(Name(i), " leads with ", has_[i], " commits; told are ", told_);
    }
    ++histories_[i];
    leaders_[i] = std::move(leader);
  }

  void Tell() {
    int tell = 0;
    for (auto& [j, leader] : leaders_) {
      if (careless_) leader->standbys.Require({}, /*alone=*/false);
      if (!leader->Tells(leader->commits)) continue;
      told_ = std::max(told_, leader->commits);
      ++tell;
      // Whatever comes next waits.
      has_[j] = ++leader->commits;
      leader->standbys.Begin(leader->commits);
    }
    if (tell > 1) broken_ = absl::StrCat(tell, " coordinators tell at once");
  }

  const uint64_t seed_;
  const bool careless_;
  uint64_t draws_ = 0;
  SharedRecord record_;
  std::vector<std::unique_ptr<FakeRegistry>> registries_;
  std::map<size_t, std::unique_ptr<Leader>> leaders_;
  std::vector<int64_t> has_;
  int64_t histories_[3] = {1, 0, 0};
  bool links_[3] = {true, true, true};
  FakeRegistry::Link registry_links_[3] = {FakeRegistry::kUp, FakeRegistry::kUp, FakeRegistry::kUp};
  int64_t told_ = 0;
  std::string broken_;
};

TEST(LeadershipLifeTest, NoTwoTellAndNothingToldIsLost) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    ASSERT_EQ(Life(seed, /*careless=*/false).Run(), "") << "seed " << seed;
  }
}

TEST(LeadershipLifeTest, ALeaderThatGoesOnBeforeTheSetSaysSoIsFound) {
  int found = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    found += Life(seed, /*careless=*/true).Run().empty() ? 0 : 1;
  }
  EXPECT_GT(found, 0);
}

}  // namespace
}  // namespace causeway::server
