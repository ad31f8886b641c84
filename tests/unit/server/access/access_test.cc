#include "server/access/access.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/telemetry/awaited_events.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

Peer Worker(const std::string& name, int port) {
  Peer peer;
  peer.address = absl::StrCat("ipv4:10.0.0.2:", port);
  peer.identity = Identity{.run = "*", .role = Role::kWorker, .name = name};
  return peer;
}

TEST(Access, ARefusalThatRepeatsIsSaidOnceAMinuteWithItsNumber) {
  FakeClock clock;
  AwaitedEvents events;
  Access::Options options;
  options.clock = &clock;
  options.events = &events;
  Access access(std::move(options));
  const auto ask_as_b = [&](const std::string& name, int port) {
    EXPECT_EQ(access.CheckWorker(Worker(name, port), Action::kAttach, "b").code(),
              absl::StatusCode::kPermissionDenied);
  };
  for (int i = 0; i < 25; ++i) ask_as_b("a", 4000 + i);
  ask_as_b("c", 4000);
  EXPECT_THAT(events.Messages(), ElementsAre(HasSubstr("refused worker a at ipv4:10.0.0.2:4000: "),
                                             HasSubstr("refused worker c at ")));
  clock.Advance(absl::Minutes(1));
  ask_as_b("a", 5000);
  ask_as_b("c", 5000);
  ASSERT_EQ(events.all().size(), 4u);
  EXPECT_THAT(events.Messages()[2], EndsWith("; 24 more before this"));
  EXPECT_THAT(events.Messages()[3], Not(HasSubstr("more before this")));
}

}  // namespace
}  // namespace causeway::server
