// causeway-wan-exchange: a worker that exchanges fragments and trains nothing, so that a link can
// be measured without the processor standing in the way.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/byte_buffer.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/cli/command_line.h"
#include "common/client/grpc_exchange.h"
#include "common/client/link.h"
#include "common/client/reach.h"
#include "common/client/session.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"
#include "common/rpc/channel.h"
#include "common/rpc/security.h"
#include "common/rpc/tcp_links.h"
#include "common/telemetry/log.h"
#include "common/transfer/wire.h"
#include "nlohmann/json.hpp"
#include "worker/member/run_member.h"

ABSL_FLAG(std::string, coordinator, "", "HOST:PORT, or several with commas between");
ABSL_FLAG(std::string, id, "", "this worker's name");
ABSL_FLAG(int, connections, 0, "for bulk transfers, 1 .. 16; 0: chosen as a worker does");
ABSL_FLAG(std::string, congestion_control, "auto", "as causeway-worker's");
ABSL_FLAG(int, pushes, 16, "deltas on their way up at once");
ABSL_FLAG(double, push_every_s, 0, "least time from one push to the next, for each of --pushes");
ABSL_FLAG(int, pulls, 24, "answers waited for or on their way down at once");
ABSL_FLAG(int, rounds, 0, "ends after so many rounds of every fragment; 0: after --seconds");
ABSL_FLAG(double, seconds, 10, "from the first answer on");
ABSL_FLAG(std::string, log_level, "warn", "debug, info, warn or error");

namespace causeway::worker {
namespace {

constexpr char kProgram[] = "causeway-wan-exchange";
constexpr char kHelp[] =
    R"(causeway-wan-exchange pushes deltas and pulls answers as a worker does, without training.

  causeway-wan-exchange --coordinator=HOST:PORT --id=NAME [--pushes=16] [--pulls=24]
      [--seconds=10 | --rounds=N] [--connections=0] [--congestion_control=auto] [--insecure]

Takes the fragments of the run in order, round after round, and never waits for anything but room:
--pushes deltas are on their way up at once, and the answers of those that have arrived are pulled
beside them, --pulls at once. So both directions are busy as long as the run has more fragments than
that. Prints one JSON object: the bytes moved over time, and when each transfer began and ended.
)";
constexpr absl::Duration kSampleInterval = absl::Milliseconds(100);
constexpr absl::Duration kPatience = absl::Minutes(2);

double UnixSeconds() { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); }

double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// The rounds of all fragments, in order, handed out to threads that push and threads that pull.
class Itinerary {
 public:
  struct Stop {
    int fragment = 0;
    int64_t round = 0;
  };

  Itinerary(int fragments, int64_t rounds)
      : rounds_(rounds), done_(static_cast<size_t>(fragments), 0) {}

  // Waits until the fragment's former round is done. False at the end.
  bool NextPush(Stop& stop) {
    absl::MutexLock lock(&mutex_);
    const auto fragments = static_cast<int64_t>(done_.size());
    stop = {static_cast<int>(next_ % fragments), next_ / fragments + 1};
    if (rounds_ > 0 && stop.round > rounds_) return false;
    ++next_;
    const auto ready = [this, &stop] {
      return ended_ || done_[static_cast<size_t>(stop.fragment)] == stop.round - 1;
    };
    mutex_.Await(absl::Condition(&ready));
    return !ended_;
  }
  void Pushed(const Stop& stop) {
    absl::MutexLock lock(&mutex_);
    pushed_.push_back(stop);
  }
  // Waits for what was pushed. False at the end.
  bool NextPull(Stop& stop) {
    absl::MutexLock lock(&mutex_);
    const auto ready = [this] { return ended_ || !pushed_.empty() || AllPulled(); };
    mutex_.Await(absl::Condition(&ready));
    if (ended_ || pushed_.empty()) return false;
    stop = pushed_.front();
    pushed_.pop_front();
    ++pulls_begun_;
    return true;
  }
  void Pulled(const Stop& stop) {
    absl::MutexLock lock(&mutex_);
    done_[static_cast<size_t>(stop.fragment)] = stop.round;
  }
  void End() {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }

 private:
  bool AllPulled() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return rounds_ > 0 && pulls_begun_ == rounds_ * static_cast<int64_t>(done_.size());
  }

  const int64_t rounds_;  // 0: no end.
  absl::Mutex mutex_;
  int64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t pulls_begun_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Stop> pushed_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> done_ ABSL_GUARDED_BY(mutex_);  // Rounds, per fragment.
};

class Driver {
 public:
  static absl::StatusOr<std::unique_ptr<Driver>> Join();
  absl::Status Run();
  nlohmann::json Report();

 private:
  Driver(ReachedRun reached, FragmentPlan plan)
      : reached_(std::move(reached)), plan_(std::move(plan)) {}

  absl::Status MakeObjects();
  absl::Status PushAll(Itinerary& itinerary);
  absl::Status PullAll(Itinerary& itinerary);
  // The order of the itinerary.
  int64_t DueStep(const Itinerary::Stop& stop) const {
    return stop.round * plan_.fragments() + stop.fragment;
  }
  void Sample();
  void Note(const char* kind, const Itinerary::Stop& stop, double begin, size_t bytes);

  const ReachedRun reached_;
  const FragmentPlan plan_;
  // One delta per fragment, the same every round.
  std::vector<std::shared_ptr<const std::vector<uint8_t>>> objects_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Link> link_;
  std::unique_ptr<GrpcExchange> exchange_;
  std::atomic<double> first_answer_unix_s_ = 0;  // 0: none has come.
  absl::Mutex mutex_;
  nlohmann::json samples_ = nlohmann::json::array();
  nlohmann::json transfers_ ABSL_GUARDED_BY(mutex_) = nlohmann::json::array();
};

// A new link to the coordinator of a run.
absl::StatusOr<std::unique_ptr<Link>> MakeLink(const ReachedRun& reached) {
  ASSIGN_OR_RETURN(const std::string congestion_control,
                   ChooseCongestionControl(absl::GetFlag(FLAGS_congestion_control)));
  Link::Options link = LinkTo(reached, absl::GetFlag(FLAGS_coordinator), congestion_control);
  link.connections = absl::GetFlag(FLAGS_connections);
  const absl::StatusOr<SocketBuffers> buffers = ReadSocketBuffers(*FileSystem::Real());
  if (buffers.ok()) link.send_buffer_bytes = buffers->send.largest;
  return std::make_unique<Link>(std::move(link));
}

absl::StatusOr<std::unique_ptr<Driver>> Driver::Join() {
  MemberOptions options;
  options.coordinator = absl::GetFlag(FLAGS_coordinator);
  options.security = SecurityOptionsFromFlags();
  options.worker_id = absl::GetFlag(FLAGS_id);
  options.connect_timeout = kPatience;
  ASSIGN_OR_RETURN(ReachedRun reached, ReachRun(options));
  ASSIGN_OR_RETURN(FragmentPlan plan, FragmentPlan::Create(reached.run.config()));
  auto driver = std::unique_ptr<Driver>(new Driver(std::move(reached), std::move(plan)));
  const v1::DescribeResponse& run = driver->reached_.run;
  RETURN_IF_ERROR(driver->MakeObjects());
  Session::Options session;
  session.channels = driver->reached_.channels;
  session.join = JoinOf(run, options.worker_id);
  session.join.set_plan_hash(driver->plan_.hash());
  session.join.set_device("none");
  session.progress.set_checkpoint_step(-1);
  ASSIGN_OR_RETURN(driver->session_, Session::Attach(std::move(session)));
  ASSIGN_OR_RETURN(driver->link_, MakeLink(driver->reached_));
  GrpcExchange::Options exchange;
  exchange.link = driver->link_.get();
  exchange.session = driver->session_.get();
  exchange.plan = &driver->plan_;
  exchange.sync = run.config().sync();
  driver->exchange_ = std::make_unique<GrpcExchange>(std::move(exchange));
  return driver;
}

absl::Status Driver::MakeObjects() {
  ASSIGN_OR_RETURN(const Codec* const codec, FindCodec(reached_.run.config().sync().codec_up()));
  const std::string id = absl::GetFlag(FLAGS_id);
  for (int i = 0; i < plan_.fragments(); ++i) {
    const auto size = static_cast<size_t>(plan_.range(i).size());
    const std::vector<float> base(size);
    std::vector<float> delta(size);
    for (size_t j = 0; j < size; ++j) {
      // Any values will do, as long as they differ by worker.
      delta[j] = 1e-3F * static_cast<float>((j * 2654435761U + id.back()) % 2048) / 2048;
    }
    auto object = std::make_shared<std::vector<uint8_t>>(codec->EncodedBytes(size));
    RETURN_IF_ERROR(codec->Encode(base, delta, {}, *object));
    objects_.push_back(std::move(object));
  }
  // As a worker does.
  KeepFreedBlocks(static_cast<size_t>(absl::GetFlag(FLAGS_pulls)) * objects_[0]->size());
  return absl::OkStatus();
}

void Driver::Note(const char* kind, const Itinerary::Stop& stop, double begin, size_t bytes) {
  absl::MutexLock lock(&mutex_);
  transfers_.push_back({{"kind", kind},
                        {"fragment", stop.fragment},
                        {"round", stop.round},
                        {"begin_unix_s", begin},
                        {"end_unix_s", UnixSeconds()},
                        {"bytes", bytes}});
}

absl::Status Driver::PushAll(Itinerary& itinerary) {
  const absl::Duration period = absl::Seconds(absl::GetFlag(FLAGS_push_every_s));
  absl::Time due = absl::Now();
  for (Itinerary::Stop stop; itinerary.NextPush(stop);) {
    absl::SleepFor(due - absl::Now());
    due = absl::Now() + period;
    const auto& object = objects_[static_cast<size_t>(stop.fragment)];
    const double begin = UnixSeconds();
    Contribution contribution;
    contribution.fragment = stop.fragment;
    contribution.round = stop.round;
    contribution.tokens = 1;
    contribution.due_step = DueStep(stop);
    contribution.object = *object;
    contribution.owner = object;
    RETURN_IF_ERROR(exchange_->Push(contribution));
    Note("push", stop, begin, object->size());
    itinerary.Pushed(stop);
  }
  return absl::OkStatus();
}

absl::Status Driver::PullAll(Itinerary& itinerary) {
  for (Itinerary::Stop stop; itinerary.NextPull(stop);) {
    const double begin = UnixSeconds();
    ASSIGN_OR_RETURN(const PulledObject answer,
                     exchange_->PullAnswer(stop.fragment, stop.round, DueStep(stop)));
    Note("pull", stop, begin, answer.bytes.size());
    double none = 0;
    first_answer_unix_s_.compare_exchange_strong(none, UnixSeconds());
    exchange_->ReportApplied(stop.fragment, stop.round, answer.published_hash);
    itinerary.Pulled(stop);
  }
  return absl::OkStatus();
}

void Driver::Sample() {
  samples_.push_back({UnixSeconds(), exchange_->bytes_up(), exchange_->bytes_down(), CpuSeconds()});
}

absl::Status Driver::Run() {
  session_->Ready(0, /*anew=*/true);
  for (bool started = false; !started;) {
    ASSIGN_OR_RETURN(const Session::Orders orders, session_->WaitForGo(absl::Seconds(1)));
    started = orders.started;
  }
  const int64_t rounds = absl::GetFlag(FLAGS_rounds);
  Itinerary itinerary(plan_.fragments(), rounds);
  const int pushes = std::clamp(absl::GetFlag(FLAGS_pushes), 1, 64);
  const int pulls = std::clamp(absl::GetFlag(FLAGS_pulls), 1, 64);
  std::atomic<int> running = pushes + pulls;
  std::vector<absl::Status> results(static_cast<size_t>(pushes + pulls));
  std::vector<std::thread> threads;
  for (int i = 0; i < pushes + pulls; ++i) {
    threads.emplace_back([&, i] {
      absl::Status& result = results[static_cast<size_t>(i)];
      result = i < pushes ? PushAll(itinerary) : PullAll(itinerary);
      if (!result.ok()) itinerary.End();
      --running;
    });
  }
  const double seconds = absl::GetFlag(FLAGS_seconds);
  const auto time_is_up = [&] {
    const double first = first_answer_unix_s_;
    return rounds == 0 && first > 0 && UnixSeconds() >= first + seconds;
  };
  while (running > 0 && !time_is_up()) {
    Sample();
    absl::SleepFor(kSampleInterval);
  }
  Sample();
  const bool in_time = time_is_up();
  itinerary.End();
  if (in_time) exchange_->Cancel();
  for (std::thread& thread : threads) thread.join();
  session_->Leave(v1::Leave::DRAINED, "measured");
  for (const absl::Status& result : results) {
    if (!result.ok() && !(in_time && absl::IsCancelled(result))) return result;
  }
  return absl::OkStatus();
}

nlohmann::json Driver::Report() {
  link_->Refresh();
  const v1::LinkReport link = link_->Report();
  absl::MutexLock lock(&mutex_);
  return {{"worker", absl::GetFlag(FLAGS_id)},
          {"fragments", plan_.fragments()},
          {"first_answer_unix_s", first_answer_unix_s_.load()},
          {"object_bytes", objects_[0]->size()},
          {"connections", link.connections()},
          {"resent_chunks", link.resent_chunks()},
          {"resumes", link.resumes()},
          {"retransmitted_segments", link.retransmitted_segments()},
          {"samples", samples_},  // [unix_s, bytes_up, bytes_down, cpu_s]
          {"transfers", transfers_}};
}

int Main(int argc, char** argv) {
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  TuneForStreams();
  if (!ParseCommandLine(argc, argv, kHelp).empty()) {
    return Refuse(kProgram, absl::InvalidArgumentError("takes flags alone; --help explains"));
  }
  const absl::Status log = InitializeLog(kProgram, absl::GetFlag(FLAGS_log_level));
  if (!log.ok()) return Refuse(kProgram, log);
  const absl::StatusOr<std::unique_ptr<Driver>> driver = Driver::Join();
  if (!driver.ok()) return Refuse(kProgram, driver.status());
  const absl::Status status = (*driver)->Run();
  if (!status.ok()) return Fail(kProgram, status);
  std::printf("%s\n", (*driver)->Report().dump().c_str());
  return 0;
}

}  // namespace
}  // namespace causeway::worker

int main(int argc, char** argv) { return causeway::worker::Main(argc, argv); }
