#include <atomic>

#include "gtest/gtest.h"
#include "server/views/status_page.h"
#include "tests/unit/server/transfer/fake_coordinator.h"

namespace causeway::server {
namespace {

TEST(HealthHandlersTest, ACoordinatorThatSavesToStopIsAliveAndTakesNobody) {
  FakeCoordinator coordinator;
  const ServedRun run(coordinator);
  std::atomic<bool> stopping = false;
  HttpHandlers handlers;
  AddHealthHandlers(run, stopping, handlers);
  EXPECT_EQ(handlers["/healthz"]({}).status, 200);
  EXPECT_EQ(handlers["/readyz"]({}).status, 200);
  stopping = true;
  EXPECT_EQ(handlers["/healthz"]({}).status, 200);
  const HttpResponse refused = handlers["/readyz"]({});
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.body, "the coordinator is stopping\n");
}

}  // namespace
}  // namespace causeway::server
