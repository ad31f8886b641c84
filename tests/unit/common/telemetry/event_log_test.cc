#include "common/telemetry/event_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metric_page.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/base/temporary_folder.h"

namespace causeway {
namespace {

class EventLogTest : public testing::Test {
 protected:
  // Every line, parsed; a line that is no JSON or an unfinished last line is a failure.
  std::vector<nlohmann::json> Lines() {
    std::vector<nlohmann::json> lines;
    const std::string text = *FileSystem::Real()->ReadFile(path_);
    EXPECT_TRUE(text.empty() || text.back() == '\n');
    for (const auto line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      lines.push_back(nlohmann::json::parse(line.begin(), line.end(), nullptr, false));
      EXPECT_FALSE(lines.back().is_discarded()) << line;
    }
    return lines;
  }

  // A log that goes on in the file.
  std::unique_ptr<EventFile> Opened(uint64_t rotate_at = kMaxEventFileBytes) {
    auto log = std::make_unique<EventFile>(&clock_);
    EXPECT_TRUE(log->Open(*FileSystem::Real(), path_, rotate_at).ok());
    return log;
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.File("events.jsonl");
  FakeClock clock_{absl::FromUnixMillis(1'700'000'000'250)};
};

TEST_F(EventLogTest, EachEventIsOneLineWithTimeNameSentenceAndFields) {
  auto log = Opened();
  log->Record("worker_joined", "worker a joined", {{"worker", "a"}, {"step", 7}});
  clock_.Advance(absl::Seconds(1));
  log->Record("run_started", "training begins", nlohmann::json::object());

  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0], nlohmann::json({{"time", "2023-11-14T22:13:20.25+00:00"},
                                      {"event", "worker_joined"},
                                      {"level", "info"},
                                      {"message", "worker a joined"},
                                      {"worker", "a"},
                                      {"step", 7}}));
  EXPECT_EQ(lines[1]["time"], "2023-11-14T22:13:21.25+00:00");
  EXPECT_EQ(lines[1].size(), 4U);
}

TEST_F(EventLogTest, ASentenceWithWordsOfAPeerStaysOneLineOfTheLog) {
  testing::internal::CaptureStderr();
  LogEvent("worker_lost", "worker a was lost\n2026-01-01 error: all is lost\x1b[2J");
  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_NE(line.find("worker a was lost?2026-01-01 error: all is lost?[2J\n"), std::string::npos)
      << line;
}

TEST_F(EventLogTest, FieldsThatAreNoObjectAreLeftOut) {
  auto log = Opened();
  log->Record("odd", "a list, and nothing", nlohmann::json::array({1, 2}));
  log->Record("odd", "nothing at all", nullptr);
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].size(), 4U);
  EXPECT_EQ(lines[1].size(), 4U);
}

TEST_F(EventLogTest, LineBreaksStayInsideTheirLineAndBytesThatAreNoUtf8AreReplaced) {
  auto log = Opened();
  log->Record("sample", "caf\xc3\xa9 \xff\xfe end",
              {{"text", "\xc3"}, {"worker", "two\nlines, \"quoted\", a \\ and a \x01"}});
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["message"], "caf\xc3\xa9 \xef\xbf\xbd\xef\xbf\xbd end");
  EXPECT_EQ(lines[0]["text"], "\xef\xbf\xbd");
  EXPECT_EQ(lines[0]["worker"], "two\nlines, \"quoted\", a \\ and a \x01");
}

TEST_F(EventLogTest, LinesOfSeveralThreadsDoNotMix) {
  auto file = JsonLinesFile::Continue(*FileSystem::Real(), path_).value();
  constexpr int kThreads = 4, kLines = 200;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int line = 0; line < kLines; ++line) {
        EXPECT_TRUE(file->Append({{"id", thread * kLines + line},
                                  {"padding", std::string(static_cast<size_t>(line), 'x')}})
                        .ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<int> ids;
  for (const auto& line : Lines()) ids.insert(line["id"].get<int>());
  EXPECT_EQ(ids.size(), static_cast<size_t>(kThreads * kLines));
}

TEST_F(EventLogTest, AFileThatCannotBeMadeIsAnErrorWithItsPath) {
  const std::string path = folder_.File("missing/events.jsonl");
  const absl::Status opened = EventFile(&clock_).Open(*FileSystem::Real(), path);
  EXPECT_EQ(opened.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(opened.message().find(path), absl::string_view::npos);
}

TEST_F(EventLogTest, ALevelSaysHowMuchItMatters) {
  auto log = Opened();
  for (const char* event : {"worker_joined", "worker_lost", "hash_mismatch", "no_such_event"}) {
    log->Record(event, "what happened", nlohmann::json::object());
  }
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0]["level"], "info");
  EXPECT_EQ(lines[1]["level"], "warn");
  EXPECT_EQ(lines[2]["level"], "error");
  EXPECT_EQ(lines[3]["level"], "info");
}

TEST_F(EventLogTest, AFullFileIsPutAsideAndOneFormerFileIsKept) {
  constexpr uint64_t kMost = 2000;
  auto log = Opened(kMost);
  for (int i = 0; i < 100; ++i) log->Record("counted", "an event", {{"number", i}});
  EXPECT_LE(*FileSystem::Real()->FileSize(path_), kMost);
  EXPECT_LE(*FileSystem::Real()->FileSize(path_ + ".1"), kMost);
  EXPECT_FALSE(FileSystem::Real()->Exists(path_ + ".2"));
  // Nothing is missing from the kept end, and the newest is in the file itself.
  const auto newest = Lines();
  ASSERT_FALSE(newest.empty());
  EXPECT_EQ(newest.back()["number"], 99);
  const std::string former = *FileSystem::Real()->ReadFile(path_ + ".1");
  const std::vector<std::string> lines = absl::StrSplit(former, '\n', absl::SkipEmpty());
  EXPECT_EQ(nlohmann::json::parse(lines.back())["number"].get<int>() + 1, newest.front()["number"]);
  // A successor goes on with the size that is there.
  log = Opened(kMost);
  for (int i = 100; i < 200; ++i) log->Record("counted", "an event", {{"number", i}});
  EXPECT_LE(*FileSystem::Real()->FileSize(path_), kMost);
  EXPECT_EQ(Lines().back()["number"], 199);
}

TEST_F(EventLogTest, ALineThatIsLargerThanTheFileMayBeIsStillWritten) {
  auto log = Opened(100);
  for (int i = 0; i < 3; ++i) log->Record("large", std::string(500, 'x'), {{"number", i}});
  ASSERT_EQ(Lines().size(), 1U);
  EXPECT_EQ(Lines()[0]["number"], 2);
}

TEST(Log, APipeThatNobodyReadsHoldsNobodyUp) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK), 0);
  const std::string filling(4096, 'x');
  size_t full = 0;
  while (write(ends[1], filling.data(), filling.size()) > 0) full += filling.size();
  ASSERT_EQ(fcntl(ends[1], F_SETFL, 0), 0);  // A writer waits, as it does for a program's log.
  const int before = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  for (int i = 0; i < 100; ++i) Log().error("nobody reads this");
  std::string text(full, ' ');
  EXPECT_EQ(read(ends[0], text.data(), full), static_cast<ssize_t>(full));
  Log().error("somebody is back");
  dup2(before, STDERR_FILENO);
  text.resize(full);
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, read(ends[0], text.data(), full))));
  EXPECT_EQ(text.find("(100 lines are left out: nobody took them)\n"), 0U) << text;
  EXPECT_NE(text.find("somebody is back\n"), std::string::npos) << text;
  for (const int descriptor : {ends[0], ends[1], before}) close(descriptor);
}

TEST(Log, LevelDecidesWhatIsWritten) {
  EXPECT_FALSE(Log().should_log(spdlog::level::info));
  EXPECT_TRUE(Log().should_log(spdlog::level::warn));
  EXPECT_EQ(InitializeLog("causeway-test", "loud").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Log().should_log(spdlog::level::warn)) << "nothing has changed";
  ASSERT_TRUE(InitializeLog("causeway-test", "error").ok());
  EXPECT_EQ(Log().name(), "causeway-test");
  EXPECT_FALSE(Log().should_log(spdlog::level::warn));
  EXPECT_TRUE(Log().should_log(spdlog::level::err));
}

TEST(CertificateFiguresTest, EachCertificateThatIsGivenHasItsOwn) {
  MetricPage page;
  AddCertificateFigures(
      page, {{"tls_cert", "cert.pem"}, {"standby_cert", "operator.pem"}, {"etcd_cert", ""}},
      [](const std::string& file) -> absl::StatusOr<absl::Time> {
        if (file == "cert.pem") return absl::FromUnixSeconds(5000);
        return absl::NotFoundError("there is no " + file);
      });
  const std::string text = page.Text();
  const auto has = [&](const std::string& line) { return absl::StrContains(text, line + "\n"); };
  EXPECT_TRUE(has("causeway_certificate_readable{flag=\"tls_cert\"} 1")) << text;
  EXPECT_TRUE(has("causeway_certificate_readable{flag=\"standby_cert\"} 0")) << text;
  EXPECT_TRUE(has("causeway_certificate_end_timestamp_seconds{flag=\"tls_cert\"} 5000")) << text;
  EXPECT_FALSE(absl::StrContains(text, "seconds{flag=\"standby_cert\"}")) << text;
  EXPECT_FALSE(absl::StrContains(text, "etcd_cert")) << text;
}

}  // namespace
}  // namespace causeway
