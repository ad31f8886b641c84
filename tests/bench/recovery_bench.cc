// Measures what durability costs a whole round, and how long a coordinator takes to come back.
//
//   recovery_bench [--json] [--quick] [--folder=DIR] [--keep=DIR] [--fragments=N] [--rounds=N]
//
// A coordinator with a model of 124M parameters in --fragments equal fragments (15: 4.2 MiB of
// int4 each; 8: 7.9 MiB) takes the deltas of three workers for --rounds rounds of every fragment,
// merges and publishes. The same is done on a store in memory, on a run directory that syncs and
// on one that does not. `rounds_per_s` counts fragments' rounds; nothing is waited for but the
// coordinator and the disk, so a real round is longer by its transfers and the cost of durability a
// smaller part of it: `sync_s_per_round` is what it adds.
//
// Then the durable coordinator dies without a word. `recovery` is the time until its successor has
// opened the folder, read the deltas, merged all rounds again, compared all hashes and is ready to
// serve; `recovery_from_snapshots` the same once every fragment has a snapshot, so that these are
// what is read. Beside each stands how long it takes, in the same run, to read the files that it
// reads from the page cache (`cached_read_s`), and what processors spent (`cpu_seconds`). What a
// run without snapshots needs beside that, its initial values, is `initial_values_s`.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"
#include "common/params/initialize.h"
#include "common/params/run_config.h"
#include "nlohmann/json.hpp"
#include "server/core/coordinator.h"
#include "server/store/run_directory_store.h"
#include "tests/bench/measure.h"
#include "tests/unit/server/core/small_run.h"
#include "tests/unit/server/store/memory_store.h"

ABSL_FLAG(std::string, folder, ".", "Where to measure; a folder below it is made and removed");
ABSL_FLAG(std::string, keep, "", "Where the run directory goes in the end; empty: it is removed");
ABSL_FLAG(int, fragments, 8, "Fragments of the model");
ABSL_FLAG(int64_t, rounds, 3, "Rounds of every fragment");

namespace causeway::server {
namespace {

using nlohmann::json;

constexpr int kWorkers = 3;

v1::RunConfig MakeConfig(bool quick, int fragments) {
  v1::RunConfig config;
  if (quick) {
    config = SmallConfig("model { layers: 2 width: 32 mlp_width: 64 }");
  } else {
    config.mutable_model()->set_preset("gpt2-124m-shape");
  }
  config.set_run_name("bench");
  v1::SyncConfig& sync = *config.mutable_sync();
  sync.set_pattern(v1::SyncConfig::BALANCED);
  sync.set_fragments(fragments);
  sync.set_codec_up(v1::INT4);
  sync.set_codec_down(v1::INT4);
  config.mutable_membership()->set_start_workers(kWorkers);
  config.mutable_membership()->set_quorum(kWorkers);
  CompleteRunConfig(config).value();
  return config;
}

class Bench {
 public:
  Bench(v1::RunConfig config, int64_t rounds)
      : config_(std::move(config)),
        plan_(FragmentPlan::Create(config_).value()),
        rounds_(rounds),
        initial_(static_cast<size_t>(plan_.arena_size())),
        pool_(static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))) {
    const absl::Duration start = Clock::Real()->Monotonic();
    InitializeParameters(plan_, config_.train().seed(), initial_, &pool_);
    initial_values_s_ = absl::ToDoubleSeconds(Clock::Real()->Monotonic() - start);
    MakeObjects();
  }

  int64_t parameters() const { return plan_.parameters(); }
  size_t object_bytes() const { return objects_[0].size(); }
  double initial_values_s() const { return initial_values_s_; }
  const std::vector<float>& initial() const { return initial_; }

  // `initial` may be empty where every fragment has a snapshot.
  absl::StatusOr<std::unique_ptr<Coordinator>> Start(Store& store, std::vector<float> initial,
                                                     int snapshot_every_rounds = 10) {
    Coordinator::Options options;
    options.config = config_;
    options.run_id = "bench-1";
    if (!initial.empty()) options.initial_values = ValuesOf(plan_, initial);
    options.snapshot_every_rounds = snapshot_every_rounds;
    ASSIGN_OR_RETURN(options.recovered, store.Recover());
    options.clock = Clock::Real();
    options.store = &store;
    options.merge_pool = &pool_;
    return Coordinator::Create(std::move(options));
  }

  // Seconds for all rounds.
  absl::StatusOr<double> Train(Coordinator& coordinator) {
    std::vector<uint64_t> incarnations;
    for (int w = 0; w < kWorkers; ++w) {
      ASSIGN_OR_RETURN(incarnations.emplace_back(), Enter(coordinator, w));
    }
    const absl::Duration start = Clock::Real()->Monotonic();
    for (int64_t round = 1; round <= rounds_; ++round) {
      for (int f = 0; f < plan_.fragments(); ++f) {
        for (int w = 0; w < kWorkers; ++w) {
          const size_t object = static_cast<size_t>(f * kWorkers + w);
          v1::PushHeader header = headers_[object];
          header.set_incarnation(incarnations[static_cast<size_t>(w)]);
          header.set_round(round);
          header.set_tokens(1000);
          header.set_send_step(round);
          RETURN_IF_ERROR(coordinator.rounds().BeginPush(header, nullptr).status());
          RETURN_IF_ERROR(coordinator.rounds().Contribute(header, objects_[object]).status());
          coordinator.rounds().MergeDue(f);
        }
      }
    }
    return absl::ToDoubleSeconds(Clock::Real()->Monotonic() - start);
  }

 private:
  static std::string WorkerId(int worker) { return absl::StrCat("worker-", worker); }

  void MakeObjects() {
    const Codec& codec = **FindCodec(config_.sync().codec_up());
    for (int f = 0; f < plan_.fragments(); ++f) {
      const auto size = static_cast<size_t>(plan_.range(f).size());
      const std::vector<float> zeros(size, 0.0F);
      std::vector<float> target(size);
      for (int w = 0; w < kWorkers; ++w) {
        for (size_t i = 0; i < size; ++i) {
          const uint64_t bits = RandomBits(static_cast<uint64_t>(w), static_cast<uint64_t>(f), i);
          target[i] = 0x1p-24F * static_cast<float>(static_cast<int16_t>(bits));
        }
        std::vector<uint8_t>& object = objects_.emplace_back(codec.EncodedBytes(size));
        bench::Check(codec.Encode(zeros, target, {}, object));
        headers_.push_back(HeaderOf("bench-1", WorkerId(w), 0, f, 0, codec.id(), object));
      }
    }
  }

  absl::StatusOr<uint64_t> Enter(Coordinator& coordinator, int worker) {
    const v1::Join join =
        JoinOf(coordinator.Describe(), WorkerId(worker), static_cast<uint64_t>(worker) + 1);
    ASSIGN_OR_RETURN(const v1::Welcome welcome,
                     coordinator.members().Join(join, std::make_shared<SilentSink>()));
    RETURN_IF_ERROR(
        coordinator.members().Handle(WorkerId(worker), welcome.incarnation(), ReadyAt(0)));
    return welcome.incarnation();
  }

  const v1::RunConfig config_;
  const FragmentPlan plan_;
  const int64_t rounds_;
  std::vector<float> initial_;
  double initial_values_s_ = 0;
  ThreadPool pool_;
  std::vector<std::vector<uint8_t>> objects_;  // fragment * kWorkers + worker
  std::vector<v1::PushHeader> headers_;        // Likewise; with neither incarnation nor round.
};

// Seconds for reading all files of a folder in pieces, and their bytes.
json ReadFromPageCache(const std::string& folder) {
  std::vector<char> piece(size_t{4} << 20);
  int64_t bytes = 0;
  const absl::Duration start = Clock::Real()->Monotonic();
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    while (file.read(piece.data(), std::ssize(piece)) || file.gcount() > 0) bytes += file.gcount();
  }
  return {{"read_bytes", bytes},
          {"cached_read_s", absl::ToDoubleSeconds(Clock::Real()->Monotonic() - start)}};
}

// The coordinator comes back; what it read lies in `folder`/`what`.
absl::StatusOr<json> MeasureRecovery(Bench& bench, const std::string& folder, const char* what,
                                     std::vector<float> initial, int64_t rounds) {
  json row = ReadFromPageCache(JoinPath(folder, what));
  const double cpu = bench::ProcessCpuSeconds();
  const absl::Duration start = Clock::Real()->Monotonic();
  ASSIGN_OR_RETURN(const auto store, RunDirectoryStore::Open(*FileSystem::Real(), folder, {}));
  ASSIGN_OR_RETURN(const auto coordinator, bench.Start(*store, std::move(initial)));
  const double seconds = absl::ToDoubleSeconds(Clock::Real()->Monotonic() - start);
  row["seconds"] = seconds;
  row["cpu_seconds"] = bench::ProcessCpuSeconds() - cpu;
  row["rounds_merged_again"] = rounds;
  row["times_cached_read"] = seconds / row["cached_read_s"].get<double>();
  return row;
}

absl::StatusOr<json> Measure() {
  const int fragments = absl::GetFlag(FLAGS_fragments);
  const int64_t rounds = absl::GetFlag(FLAGS_rounds);
  if (fragments < 1 || rounds < 1) {
    return absl::InvalidArgumentError("--fragments and --rounds must be 1 or more");
  }
  const bench::Scratch scratch(absl::GetFlag(FLAGS_folder));
  FileSystem& files = *FileSystem::Real();
  Bench bench(MakeConfig(absl::GetFlag(FLAGS_quick), fragments), rounds);
  const auto all = static_cast<double>(rounds * fragments);
  json report = {{"parameters", bench.parameters()},
                 {"fragments", fragments},
                 {"rounds", rounds * fragments},
                 {"workers", kWorkers},
                 {"object_bytes", bench.object_bytes()}};
  const auto row = [&](const char* name, double seconds) {
    report[name] = {{"seconds", seconds}, {"rounds_per_s", all / seconds}};
  };
  {
    MemoryStore store;
    ASSIGN_OR_RETURN(const auto coordinator, bench.Start(store, bench.initial()));
    ASSIGN_OR_RETURN(const double seconds, bench.Train(*coordinator));
    row("memory", seconds);
  }
  {
    ASSIGN_OR_RETURN(const auto store,
                     RunDirectoryStore::Open(files, scratch.File("unsynced"), {.durable = false}));
    ASSIGN_OR_RETURN(const auto coordinator, bench.Start(*store, bench.initial()));
    ASSIGN_OR_RETURN(const double seconds, bench.Train(*coordinator));
    row("unsynced", seconds);
  }
  const std::string folder = scratch.File("durable");
  {
    ASSIGN_OR_RETURN(const auto store, RunDirectoryStore::Open(files, folder, {}));
    ASSIGN_OR_RETURN(const auto coordinator, bench.Start(*store, bench.initial()));
    ASSIGN_OR_RETURN(const double seconds, bench.Train(*coordinator));
    row("durable", seconds);
  }
  report["sync_s_per_round"] =
      (report["durable"]["seconds"].get<double>() - report["unsynced"]["seconds"].get<double>()) /
      all;
  report["initial_values_s"] = bench.initial_values_s();
  ASSIGN_OR_RETURN(report["recovery"],
                   MeasureRecovery(bench, folder, "deltas", bench.initial(), rounds * fragments));
  {
    ASSIGN_OR_RETURN(const auto store, RunDirectoryStore::Open(files, folder, {}));
    ASSIGN_OR_RETURN(const auto coordinator, bench.Start(*store, bench.initial(), 1));
    for (int f = 0; f < fragments; ++f) coordinator->Maintain();  // Each saves at least one.
  }
  ASSIGN_OR_RETURN(report["recovery_from_snapshots"],
                   MeasureRecovery(bench, folder, "snapshots", {}, 0));
  const std::string keep = absl::GetFlag(FLAGS_keep);
  if (!keep.empty()) RETURN_IF_ERROR(files.Rename(folder, keep));
  return report;
}

}  // namespace
}  // namespace causeway::server

int main(int argc, char** argv) {
  return causeway::bench::RunBenchmark(
      argc, argv,
      "recovery_bench [--json] [--quick] [--folder=DIR] [--keep=DIR] [--fragments=N] "
      "[--rounds=N]\n",
      causeway::server::Measure);
}
