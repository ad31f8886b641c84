// Judgements about made-up facts: the coordinator's, the link's and the site's.
#include <optional>
#include <string>
#include <vector>

#include "common/params/run_config.h"
#include "common/transfer/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/temporary_folder.h"
#include "worker/data/text_corpus.h"
#include "worker/preflight/checks.h"

namespace causeway::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

v1::DescribeResponse Describe() {
  v1::DescribeResponse response;
  response.set_run_id("first-1");
  v1::RunConfig& config = *response.mutable_config();
  config.mutable_model()->set_preset("tiny-1m");
  config.mutable_sync()->set_fragments(2);
  config.mutable_sync()->set_overlap_steps(5);
  config.mutable_membership()->set_max_workers(4);
  EXPECT_TRUE(CompleteRunConfig(config).ok());
  response.set_config_hash(RunConfigHash(config));
  response.set_plan_hash(FragmentPlan::Create(config)->hash());
  response.set_wire_version(kWireVersion);
  return response;
}

UnderstoodRun TinyRun() {
  std::optional<UnderstoodRun> run;
  EXPECT_EQ(JudgeConfiguration(Describe(), run).status, CheckStatus::kOk);
  return *std::move(run);
}

EchoSample Sample(absl::Duration skew, absl::Duration round_trip) {
  EchoSample sample;
  sample.sent = absl::FromUnixSeconds(1'700'000'000);
  sample.round_trip = round_trip;
  sample.response.set_unix_us(absl::ToUnixMicros(sample.sent + round_trip / 2 - skew));
  return sample;
}

TEST(CoordinatorChecks, NoAnswerIsExplainedByItsKind) {
  EXPECT_EQ(JudgeAnswer("h:1", absl::OkStatus()).status, CheckStatus::kOk);
  EXPECT_THAT(JudgeAnswer("h:1", absl::UnimplementedError("")).remedy, HasSubstr("older release"));
  EXPECT_THAT(JudgeAnswer("h:1", absl::UnauthenticatedError("no token")).finding,
              HasSubstr("no token"));
  EXPECT_THAT(JudgeAnswer("h:1", absl::PermissionDeniedError("run b")).finding, HasSubstr("run b"));
  EXPECT_THAT(JudgeAnswer("h:1", absl::DeadlineExceededError("")).finding,
              HasSubstr("no call is answered in time"));
}

TEST(CoordinatorChecks, AnIdThatIsTakenOrRefusedFailsAndOneThatComesBackPasses) {
  v1::EchoResponse echo;
  echo.set_peer("10.0.0.7:4711");
  echo.set_identity("causeway://*/worker/site-a");
  echo.set_max_workers(4);
  echo.set_live_workers(1);
  EXPECT_THAT(JudgeIdentity(echo, "").finding, HasSubstr("causeway://*/worker/site-a at 10.0.0.7"));
  echo.set_id_state(v1::EchoResponse::FREE);
  EXPECT_THAT(JudgeIdentity(echo, "site-a").finding,
              HasSubstr("\"site-a\" is free, 1 of 4 places are taken"));
  echo.set_id_state(v1::EchoResponse::LIVE);
  echo.set_id_detail("cpu, 8 threads");
  EXPECT_EQ(JudgeIdentity(echo, "site-a").status, CheckStatus::kFailed);
  EXPECT_THAT(JudgeIdentity(echo, "site-a").finding, HasSubstr("cpu, 8 threads"));
  echo.set_id_state(v1::EchoResponse::REFUSED);
  EXPECT_EQ(JudgeIdentity(echo, "site-b").status, CheckStatus::kFailed);
  echo.set_live_workers(4);
  echo.set_id_state(v1::EchoResponse::LEFT);
  EXPECT_EQ(JudgeIdentity(echo, "site-a").status, CheckStatus::kOk);
  echo.set_id_state(v1::EchoResponse::FREE);
  EXPECT_THAT(JudgeIdentity(echo, "site-a").finding, HasSubstr("all 4 places"));
}

TEST(CoordinatorChecks, AConfigurationThatIsReadDifferentlyFails) {
  std::optional<UnderstoodRun> run;
  v1::DescribeResponse description = Describe();
  EXPECT_THAT(JudgeConfiguration(description, run).finding, HasSubstr("run first-1: tiny-1m"));
  EXPECT_TRUE(run.has_value());
  run.reset();
  description.set_plan_hash(1);
  EXPECT_THAT(JudgeConfiguration(description, run).finding, HasSubstr("cut into fragments"));
  description.set_config_hash(1);
  EXPECT_THAT(JudgeConfiguration(description, run).finding, HasSubstr("configuration diff"));
  description.mutable_config()->mutable_sync()->set_fragments(-1);
  EXPECT_THAT(JudgeConfiguration(description, run).finding, HasSubstr("sync.fragments"));
  EXPECT_EQ(JudgeConfiguration(absl::InternalError("x"), run).status, CheckStatus::kFailed);
  EXPECT_FALSE(run.has_value());
}

TEST(CoordinatorChecks, TheClockIsJudgedByTheQuickestCall) {
  const std::vector<EchoSample> samples = {
      Sample(absl::Seconds(9), absl::Milliseconds(900)),
      Sample(absl::Milliseconds(-300), absl::Milliseconds(100))};
  EXPECT_EQ(JudgeClock(samples).status, CheckStatus::kOk);
  EXPECT_EQ(JudgeClock(samples).finding, "300 ms behind the coordinator's");
  const CheckResult off = JudgeClock(std::span(samples).first(1));
  EXPECT_EQ(off.status, CheckStatus::kWarning);
  EXPECT_EQ(off.finding, "9.00 s ahead of the coordinator's");
  EXPECT_EQ(
      JudgeClock(std::vector{Sample(absl::Milliseconds(20), absl::Milliseconds(100))}).finding,
      "agrees with the coordinator's to within 50.0 ms");
}

TEST(CoordinatorChecks, TheRoundTripLeavesTheFirstCallOut) {
  const std::vector<EchoSample> samples = {
      Sample({}, absl::Milliseconds(900)), Sample({}, absl::Milliseconds(120)),
      Sample({}, absl::Milliseconds(100)), Sample({}, absl::Milliseconds(110))};
  EXPECT_EQ(JudgeRoundTrip(samples, absl::Milliseconds(99)).finding,
            "100 ms at best, 110 ms in the median of 3 calls; 99.0 ms by TCP");
  EXPECT_THAT(JudgeRoundTrip(std::span(samples).first(1), {}).finding,
              AllOf(HasSubstr("900 ms at best"), Not(HasSubstr("TCP"))));
}

LinkRate Rate(double mbit, int connections) {
  LinkRate rate;
  rate.bytes_per_second = mbit * 125e3;
  rate.connections = connections;
  return rate;
}

TEST(LinkChecks, ABusyCoordinatorIsAWarningAndALinkThatCarriesNothingAFailure) {
  EXPECT_EQ(JudgeRate(Direction::kUp, absl::ResourceExhaustedError("in 5 s")).status,
            CheckStatus::kWarning);
  const CheckResult nothing = JudgeRate(Direction::kDown, absl::UnavailableError("nothing"));
  EXPECT_EQ(nothing.status, CheckStatus::kFailed);
  EXPECT_EQ(nothing.name, "rate down");
  EXPECT_THAT(nothing.remedy, HasSubstr("MTU"));
  EXPECT_THAT(JudgeRate(Direction::kUp, Rate(812, 4)).finding,
              HasSubstr("812 Mbit/s over 4 connections"));
}

TEST(LinkChecks, BuffersThatBindAreNamedWithTheEndTheyAreAt) {
  const SocketBuffers large = {.send = {4096, 16384, 64 << 20},
                               .receive = {4096, 131072, 64 << 20}};
  SocketBuffers small = large;
  small.send.largest = 4 << 20;
  v1::EchoResponse echo;
  echo.set_send_buffer_bytes(64 << 20);
  echo.set_receive_buffer_bytes(64 << 20);
  const absl::Duration rtt = absl::Milliseconds(100);
  const LinkRate rate = Rate(160, 1);
  EXPECT_EQ(JudgeBuffers(large, echo, rate, rate, rtt).status, CheckStatus::kOk);
  const CheckResult here = JudgeBuffers(small, echo, rate, rate, rtt);
  EXPECT_EQ(here.status, CheckStatus::kWarning);
  EXPECT_THAT(here.finding,
              AllOf(HasSubstr("sending runs at 160 of the at most 168 Mbit/s"),
                    HasSubstr("`sysctl -w net.ipv4.tcp_wmem='4096 16384 8388608'` as root, or")));
  echo.set_send_buffer_bytes(4 << 20);
  EXPECT_THAT(JudgeBuffers(large, echo, rate, rate, rtt).finding,
              AllOf(HasSubstr("sending at the coordinator runs at"),
                    HasSubstr("net.ipv4.tcp_wmem='4096 16384 8388608'` as root at the coord")));
  EXPECT_EQ(JudgeBuffers(absl::NotFoundError(""), v1::EchoResponse(), rate, rate, rtt).status,
            CheckStatus::kOk);
}

TEST(LinkChecks, OnALongLinkBothEndsShouldUseBbr) {
  const absl::Status allowed;
  const absl::Status missing = absl::NotFoundError("modprobe tcp_bbr");
  const absl::Duration far = absl::Milliseconds(80);
  EXPECT_EQ(JudgeCongestionControl("bbr", "bbr", allowed, far).status, CheckStatus::kOk);
  EXPECT_EQ(JudgeCongestionControl("cubic", "cubic", missing, absl::Milliseconds(2)).status,
            CheckStatus::kOk);
  const CheckResult ours = JudgeCongestionControl("cubic", "bbr", missing, far);
  EXPECT_EQ(ours.status, CheckStatus::kWarning);
  EXPECT_THAT(ours.remedy, AllOf(HasSubstr("here: modprobe"), Not(HasSubstr("at the coord"))));
  EXPECT_THAT(JudgeCongestionControl("bbr", "cubic", allowed, far).remedy,
              HasSubstr("at the coordinator"));
  EXPECT_EQ(JudgeCongestionControl("", "", allowed, far).status, CheckStatus::kSkipped);
}

TEST(LinkChecks, TheForecastIsTheRatioOfWhatTheLinkCarriesToWhatTheRunNeeds) {
  const LinkNeed need = {.steps_between_syncs = 100,
                         .overlap_steps = 0,
                         .up_bytes = {1e6, 1e6},
                         .down_bytes = {2e6, 2e6},
                         .state_bytes = 8e6};
  const LinkForecast forecast =
      Forecast(need, 1e6, 1e6, absl::Milliseconds(250), absl::Seconds(0.1));
  EXPECT_DOUBLE_EQ(forecast.up_bytes_per_second, 2e5);
  EXPECT_DOUBLE_EQ(forecast.down_bytes_per_second, 4e5);
  EXPECT_DOUBLE_EQ(forecast.headroom, 2.5);
  EXPECT_EQ(forecast.least_step_time, absl::Milliseconds(40));
  // Each fragment is away for 1 + 2 + 0.5 s in ten seconds of steps.
  EXPECT_DOUBLE_EQ(forecast.utilization, 10.0 / 17.0);
  EXPECT_EQ(forecast.join_time, absl::Milliseconds(8250));
  EXPECT_THAT(JudgeForecast(forecast, absl::Seconds(0.1), true).finding,
              HasSubstr("carries 2.5 times the rate that the run needs at about 100 ms per step"));
  EXPECT_THAT(JudgeForecast(forecast, absl::Seconds(0.1), true).remedy, HasSubstr("overlap_steps"));

  LinkNeed overlapped = need;
  overlapped.overlap_steps = 40;
  const LinkForecast good =
      Forecast(overlapped, 1e6, 1e6, absl::Milliseconds(250), absl::Seconds(0.1));
  EXPECT_DOUBLE_EQ(good.utilization, 1);
  EXPECT_EQ(JudgeForecast(good, absl::Seconds(0.1), false).status, CheckStatus::kOk);

  const LinkForecast thin =
      Forecast(overlapped, 1e6, 1e5, absl::Milliseconds(250), absl::Seconds(0.1));
  EXPECT_LT(thin.headroom, 1);
  EXPECT_LE(thin.utilization, 0.25);
  EXPECT_THAT(JudgeForecast(thin, absl::Seconds(0.1), false).remedy, HasSubstr("sync.codec_up"));
}

TEST(LinkChecks, ARunNeedsTheEncodedBytesOfEveryFragment) {
  const UnderstoodRun run = TinyRun();
  const LinkNeed need = LinkNeedOf(run.config, run.plan);
  ASSERT_EQ(need.up_bytes.size(), 3U);
  EXPECT_EQ(need.up_bytes[0] + need.up_bytes[1] + need.up_bytes[2], need.state_bytes);  // FP32.
  EXPECT_EQ(need.overlap_steps, 5);
}

TEST(SiteChecks, ADiskIsMeasuredWithoutATrace) {
  const TemporaryFolder folder;
  FileSystem& files = *FileSystem::Real();
  const std::string output = folder.File("a/b");
  const absl::StatusOr<DiskFacts> disk = MeasureDisk(files, *Clock::Real(), output);
  ASSERT_TRUE(disk.ok()) << disk.status();
  EXPECT_EQ(disk->folder, folder.path());
  EXPECT_FALSE(disk->exists);
  EXPECT_GT(disk->write_bytes_per_second, 0);
  EXPECT_TRUE(files.List(folder.path())->empty());
  EXPECT_THAT(JudgeDisk(output, disk, 1000).finding, HasSubstr("where " + output + " will be"));
}

TEST(SiteChecks, AnOutputFolderInUseOrAFileInItsPlaceIsRefused) {
  const TemporaryFolder folder;
  FileSystem& files = *FileSystem::Real();
  WriteText(folder.File("file"), "x");
  const CheckResult file = JudgeDisk(
      folder.File("file/out"), MeasureDisk(files, *Clock::Real(), folder.File("file/out")), 0);
  EXPECT_EQ(file.status, CheckStatus::kFailed);
  EXPECT_THAT(file.finding, HasSubstr("is a file, not a folder"));
}

TEST(SiteChecks, TooLittleRoomFailsAndASlowDiskIsAWarning) {
  DiskFacts disk = {.folder = "/out",
                    .exists = true,
                    .free_bytes = uint64_t{1} << 30,
                    .write_bytes_per_second = 1e8,
                    .sync_time = absl::Milliseconds(3)};
  EXPECT_EQ(JudgeDisk("/out", disk, 400 << 20).status, CheckStatus::kOk);
  const CheckResult tight = JudgeDisk("/out", disk, 600 << 20);
  EXPECT_EQ(tight.status, CheckStatus::kFailed);
  EXPECT_THAT(tight.remedy, HasSubstr("are needed, for two checkpoints"));
  disk.write_bytes_per_second = 1e6;
  EXPECT_THAT(JudgeDisk("/out", disk, 100 << 20).remedy, HasSubstr("faster disk"));
  EXPECT_THAT(JudgeDisk("/out", absl::ResourceExhaustedError("full"), 0).remedy,
              HasSubstr("the disk is full"));
  EXPECT_THAT(JudgeDisk("/out", absl::PermissionDeniedError("no"), 0).remedy,
              HasSubstr("may write to"));
}

TEST(SiteChecks, ACheckpointOfAnotherRunOrWorkerFails) {
  WorkerCheckpoint checkpoint;
  checkpoint.run_id = "first-1";
  checkpoint.worker_id = "site-a";
  checkpoint.step = 40;
  EXPECT_THAT(JudgeCheckpoint("c", checkpoint, "first-1", "site-a").finding,
              HasSubstr("continues from it"));
  EXPECT_EQ(JudgeCheckpoint("c", checkpoint, "first-1", "").status, CheckStatus::kOk);
  EXPECT_EQ(JudgeCheckpoint("c", checkpoint, "second-2", "site-a").status, CheckStatus::kFailed);
  EXPECT_EQ(JudgeCheckpoint("c", checkpoint, "first-1", "site-b").status, CheckStatus::kFailed);
  EXPECT_EQ(JudgeCheckpoint("c", absl::DataLossError("x"), "", "").status, CheckStatus::kFailed);
}

class FakeRoot : public ::testing::Test {
 protected:
  void Write(const std::string& path, absl::string_view text) {
    const std::string full = folder_.path() + path;
    ASSERT_TRUE(files_.CreateFolders(ParentFolder(full)).ok());
    WriteText(full, text);
  }
  const TemporaryFolder folder_;
  FileSystem& files_ = *FileSystem::Real();
};

TEST_F(FakeRoot, MemoryIsTheSmallerOfTheMachinesAndTheContainers) {
  EXPECT_FALSE(AvailableMemory(files_, folder_.path()).ok());
  Write("/proc/meminfo", "MemTotal:  8000 kB\nMemAvailable:    4000 kB\n");
  EXPECT_EQ(*AvailableMemory(files_, folder_.path()), 4000 * 1024);
  Write("/sys/fs/cgroup/memory.max", "max\n");
  Write("/sys/fs/cgroup/memory.current", "1000\n");
  EXPECT_EQ(*AvailableMemory(files_, folder_.path()), 4000 * 1024);
  Write("/sys/fs/cgroup/memory.max", "50000\n");
  EXPECT_EQ(*AvailableMemory(files_, folder_.path()), 49000);
  EXPECT_EQ(JudgeMemory(60'000, 49'000).status, CheckStatus::kFailed);
  EXPECT_EQ(JudgeMemory(45'000, 49'000).status, CheckStatus::kWarning);
  EXPECT_EQ(JudgeMemory(9'000, 49'000).status, CheckStatus::kOk);
  EXPECT_EQ(JudgeMemory(9'000, absl::NotFoundError("")).status, CheckStatus::kOk);
}

TEST_F(FakeRoot, AContainersQuotaOfCoresAndAnUnusedGpuAreSeen) {
  Write("/sys/fs/cgroup/cpu.max", "150000 100000\n");
  DeviceFacts devices = FindDevices(files_, 4, folder_.path());
  EXPECT_EQ(devices.threads, 4);
  EXPECT_DOUBLE_EQ(devices.core_limit, 1.5);
  EXPECT_FALSE(devices.has_gpu);
  devices.cores = 8;
  devices.matrix_flops_per_second = 1e11;
  EXPECT_THAT(JudgeDevices(devices).remedy, HasSubstr("--threads=1"));
  Write("/sys/fs/cgroup/cpu.max", "max 100000\n");
  Write("/dev/nvidia0", "");
  devices = FindDevices(files_, 1, folder_.path());
  EXPECT_EQ(devices.core_limit, 0);
  EXPECT_THAT(JudgeDevices(devices).finding, HasSubstr("a GPU is here"));
  EXPECT_EQ(JudgeDevices(devices).remedy, "this build trains on CPUs alone");
  devices.uses_gpus = true;
  EXPECT_THAT(JudgeDevices(devices).finding, HasSubstr("training takes the GPUs"));
  EXPECT_EQ(JudgeDevices(devices).status, CheckStatus::kOk);
  devices.matrix_flops_per_second = 1e11;
  EXPECT_GT(GuessStepTime(TinyRun(), devices), absl::ZeroDuration());
}

TEST_F(FakeRoot, DataMustBeReadableOfTheRunsVocabularyAndEnough) {
  const auto none = Dataset::Open(files_, folder_.File("data"));
  EXPECT_EQ(JudgeData(none, nullptr, 0, false).status, CheckStatus::kFailed);
  EXPECT_THAT(JudgeData(none, nullptr, 0, false).remedy, HasSubstr("causeway-worker tokenize"));
  Write("/text.txt", std::string(20'000, 'a'));
  TokenizeOptions options;
  options.inputs = {folder_.File("text.txt")};
  options.output = folder_.File("data");
  ASSERT_TRUE(Tokenize(files_, options).ok());
  const auto data = Dataset::Open(files_, folder_.File("data"));
  ASSERT_TRUE(data.ok()) << data.status();
  UnderstoodRun run = TinyRun();
  EXPECT_EQ(JudgeData(data, nullptr, 0, false).status, CheckStatus::kOk);
  EXPECT_THAT(JudgeData(data, &run, 0, false).finding, HasSubstr("windows of 256"));
  const uint64_t fingerprint = data->train()->Fingerprint();
  EXPECT_EQ(JudgeData(data, &run, fingerprint, false).status, CheckStatus::kOk);
  EXPECT_THAT(JudgeData(data, &run, fingerprint + 1, false).remedy, HasSubstr("--own_data"));
  EXPECT_EQ(JudgeData(data, &run, fingerprint + 1, true).status, CheckStatus::kOk);
  run.config.mutable_membership()->set_max_workers(1000);
  EXPECT_EQ(JudgeData(data, &run, 0, false).status, CheckStatus::kFailed);
  EXPECT_EQ(JudgeData(data, &run, 0, true).status, CheckStatus::kOk);
  run.config.mutable_model()->set_vocabulary_size(512);
  EXPECT_THAT(JudgeData(data, &run, 0, true).finding, AllOf(HasSubstr("256"), HasSubstr("512")));
  EXPECT_THAT(JudgeData(data, &run, 0, true).remedy, HasSubstr("tokenizer of the run"));
}

}  // namespace
}  // namespace causeway::worker
