#include "worker/site/log_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"
#include "worker/site/causeway_site.h"

namespace causeway::worker {
namespace {

TEST(LogQueueTest, KeepsLinesWithTheirLevelsUntilTheyAreTaken) {
  LogQueue& queue = LogQueue::Get();
  const LogQueue::Wanted wanted;
  Log().info("one");
  Log().warn("two");
  Log().error("three");
  Log().debug("not for people");
  const std::vector<LogLine> lines = queue.Take();
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].text, "one");
  EXPECT_EQ(lines[0].level, CAUSEWAY_LOG_INFO);
  EXPECT_EQ(lines[1].level, CAUSEWAY_LOG_WARNING);
  EXPECT_EQ(lines[2].level, CAUSEWAY_LOG_ERROR);
  EXPECT_TRUE(queue.Take().empty());
}

TEST(LogQueueTest, DropsTheOldestAndSaysSo) {
  LogQueue& queue = LogQueue::Get();
  const LogQueue::Wanted wanted;
  for (size_t i = 0; i < LogQueue::kMaxLines + 5; ++i) Log().info("line {}", i);
  const std::vector<LogLine> lines = queue.Take();
  ASSERT_EQ(lines.size(), LogQueue::kMaxLines + 1);
  EXPECT_THAT(lines[0].text, testing::HasSubstr("5 older log lines were dropped"));
  EXPECT_EQ(lines[1].text, "line 5");
}

}  // namespace
}  // namespace causeway::worker
