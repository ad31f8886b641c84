#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "tests/unit/common/base/status_is.h"
#include "worker/sync/local_group.h"

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;

TEST(LocalGroupTest, WrongBoundsAreRefused) {
  for (const std::vector<int64_t>& bounds :
       {std::vector<int64_t>{}, {0}, {0, 1, 1}, {1, 0}, {-1, 0}}) {
    EXPECT_THAT(CheckBounds(bounds, 1), StatusIs(kInvalidArgument));
  }
  EXPECT_TRUE(CheckBounds(std::vector<int64_t>{0, 0}, 1).ok());
}

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

}  // namespace
}  // namespace causeway::worker
