#include "server/ctl/stall_watch.h"

#include <thread>

#include "gtest/gtest.h"

namespace causeway::server {
namespace {

TEST(StallWatchTest, ACallInWhichNothingMovesIsCancelled) {
  grpc::ClientContext call;
  const StallWatch watch(call, absl::Milliseconds(1));
  while (!watch.stalled()) std::this_thread::yield();
}

TEST(StallWatchTest, ACallThatEndsInTimeIsLeftAlone) {
  grpc::ClientContext call;
  StallWatch watch(call, absl::Hours(1));
  watch.Moved();
  EXPECT_FALSE(watch.stalled());
}  // And the watch goes without waiting for the hour.

}  // namespace
}  // namespace causeway::server
