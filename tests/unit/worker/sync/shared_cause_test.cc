#include "worker/sync/local_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;

TEST(SharedCauseTest, TheFirstCauseStaysAndNamesItsRank) {
  SharedCause cause;
  EXPECT_TRUE(cause.Get().ok());
  cause.Set(3, absl::InternalError("device lost"));
  cause.Set(4, absl::InternalError("what followed"));
  EXPECT_EQ(cause.Get(), absl::AbortedError("rank 3: device lost"));
}

TEST(SharedCauseTest, ListenersHearItOnceEvenIfTheyComeLate) {
  SharedCause cause;
  std::vector<std::string> heard;
  const auto listener = [&](const absl::Status& status) { heard.emplace_back(status.message()); };
  cause.Listen(listener);
  cause.Remove(cause.Listen([&](const absl::Status&) { heard.emplace_back("nobody listens"); }));
  cause.Set(absl::UnavailableError("host 1 is gone"));
  cause.Set(absl::UnavailableError("another"));
  cause.Listen(listener);
  EXPECT_THAT(heard, ElementsAre("host 1 is gone", "host 1 is gone"));
}

TEST(SharedCauseTest, WhoWaitsIsWoken) {
  SharedCause cause;
  EXPECT_TRUE(cause.WaitFor(absl::ZeroDuration()).ok());
  std::thread other([&] { cause.Set(absl::UnavailableError("gone")); });
  EXPECT_FALSE(cause.WaitFor(absl::InfiniteDuration()).ok());
  other.join();
}

}  // namespace
}  // namespace causeway::worker
