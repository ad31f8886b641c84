// Measures what durability costs: contributions, snapshots and recovery of a run directory, next to
// what the same disk can do.
//
//   store_bench [--json] [--quick] [--folder=DIR] [--repeats=N] [--snapshot_values=N] [--rounds=N]
//
// `contributions`: SaveContribution of 4 and 8 MiB objects, one after the other, durable and not,
// beside `plain`: the same bytes written to a new file and fdatasync'ed, with nothing around them.
// The three take turns, so that what else the disk does falls on all alike. A durable contribution
// syncs three times: the file, its folder, and the database's log.
//
// `commits`: SaveMembers, a commit without a file, beside an fdatasync of 4,096 bytes.
//
// `snapshot`: SaveSnapshot of a fragment with theta, published and momentum, beside the plain
// write.
//
// `recovery`: Open and Recover of a directory with --rounds rounds of one fragment, each with one
// contribution, all answers but the last forgotten, a snapshot every 100 rounds.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/random.h"
#include "common/cli/command_line.h"
#include "nlohmann/json.hpp"
#include "server/store/run_directory_store.h"
#include "tests/bench/measure.h"

ABSL_FLAG(std::string, folder, ".", "Where to measure; a folder below it is made and removed");
ABSL_FLAG(int, repeats, 20, "Timed calls per row; the median counts");
ABSL_FLAG(int64_t, snapshot_values, int64_t{64} << 20, "Parameters of the snapshot's fragment");
ABSL_FLAG(int64_t, rounds, 10000, "Rounds of the run that is recovered");

namespace causeway::bench {
namespace {

using nlohmann::json;
using server::FragmentView;
using server::RunDirectoryStore;

constexpr char kProgram[] = "store_bench";
constexpr int64_t kRoundsPerSnapshot = 100;

std::vector<uint8_t> RandomBytes(size_t bytes) {
  std::vector<uint8_t> data(bytes);
  for (size_t i = 0; i < bytes; ++i)
    data[i] = static_cast<uint8_t>(RandomBits(1, 2, i / 8) >> i % 8);
  return data;
}

// The limit: nothing but the bytes, in a new file.
void WritePlainly(const std::string& path, std::span<const uint8_t> data) {
  const auto file = Value(FileSystem::Real()->Create(path));
  Check(file->Append(data));
  Check(file->Sync());
}

std::unique_ptr<RunDirectoryStore> Begin(const std::string& folder,
                                         const RunDirectoryStore::Options& options) {
  auto store = Value(RunDirectoryStore::Open(*FileSystem::Real(), folder, options));
  Check(store->Recover().status());
  v1::RunIdentity identity;
  identity.set_run_id("bench");
  identity.add_initial_hashes(1);
  Check(store->BeginRun(identity));
  return store;
}

absl::Status Contribute(RunDirectoryStore& store, int64_t round, std::span<const uint8_t> object) {
  v1::Contribution record;
  record.mutable_header()->set_round(round);
  record.mutable_header()->set_worker_id("worker");
  record.mutable_header()->set_total_bytes(static_cast<int64_t>(object.size()));
  return store.SaveContribution(record, object);
}

json MeasureContributions(const Scratch& scratch, size_t mebibytes, int repeats) {
  const std::vector<uint8_t> object = RandomBytes(mebibytes << 20);
  const auto durable = Begin(scratch.File(absl::StrCat("durable-", mebibytes)), {});
  const auto unsynced =
      Begin(scratch.File(absl::StrCat("unsynced-", mebibytes)), {.durable = false});
  std::vector<double> plain_s;
  std::vector<double> durable_s;
  std::vector<double> unsynced_s;
  for (int i = 0; i <= repeats; ++i) {
    const std::string path = scratch.File(absl::StrCat("plain-", mebibytes, "-", i));
    const double plain = Seconds([&] { WritePlainly(path, object); });
    const double with = Seconds([&] { Check(Contribute(*durable, i + 1, object)); });
    const double without = Seconds([&] { Check(Contribute(*unsynced, i + 1, object)); });
    if (i == 0) continue;  // To warm up.
    plain_s.push_back(plain);
    durable_s.push_back(with);
    unsynced_s.push_back(without);
  }
  const auto rate = [&](double seconds) {
    return static_cast<double>(object.size()) / seconds / 1e6;
  };
  const double plain = Median(plain_s);
  const double with = Median(durable_s);
  const double without = Median(unsynced_s);
  return {{"object_bytes", object.size()},
          {"durable_s", with},
          {"durable_per_s", 1 / with},
          {"durable_mb_per_s", rate(with)},
          {"unsynced_s", without},
          {"unsynced_per_s", 1 / without},
          {"unsynced_mb_per_s", rate(without)},
          {"plain_s", plain},
          {"plain_mb_per_s", rate(plain)},
          {"durable_of_plain", plain / with}};
}

json MeasureCommits(const Scratch& scratch, int repeats) {
  const auto store = Begin(scratch.File("commits"), {});
  const std::vector<uint8_t> page(4096);
  const auto file = Value(FileSystem::Real()->Create(scratch.File("pages")));
  std::vector<double> commit_s;
  std::vector<double> plain_s;
  v1::Member member;
  member.set_worker_id("worker");
  for (int i = 0; i <= repeats; ++i) {
    member.set_step(i);
    commit_s.push_back(Seconds([&] { Check(store->SaveMembers({&member, 1})); }));
    plain_s.push_back(Seconds([&] {
      Check(file->Append(page));
      Check(file->Sync());
    }));
  }
  return {{"commit_s", Median(commit_s)},
          {"commits_per_s", 1 / Median(commit_s)},
          {"plain_sync_s", Median(plain_s)},
          {"commits_of_plain", Median(plain_s) / Median(commit_s)}};
}

json MeasureSnapshot(const Scratch& scratch, int64_t values, int repeats) {
  std::vector<float> array(static_cast<size_t>(values));
  for (size_t i = 0; i < array.size(); ++i) array[i] = static_cast<float>(i % 1009);
  const size_t bytes = 3 * array.size() * sizeof(float);
  const auto store = Begin(scratch.File("snapshots"), {});
  const std::span<const uint8_t> raw(reinterpret_cast<const uint8_t*>(array.data()),
                                     array.size() * sizeof(float));
  std::vector<double> snapshot_s;
  std::vector<double> plain_s;
  for (int i = 0; i <= repeats; ++i) {
    FragmentView view;
    view.version = i;
    view.theta = array;
    view.published = array;
    view.optimizer = {{"momentum", array}};
    if (i > 0) {
      v1::Round round;
      round.set_round(i);
      Check(store->SaveRound(round, {}));
    }
    const double snapshot = Seconds([&] { Check(store->SaveSnapshot(view)); });
    const std::string path = scratch.File("plain-snapshot");
    const double plain = Seconds([&] {
      const auto file = Value(FileSystem::Real()->Create(path));
      for (int part = 0; part < 3; ++part) Check(file->Append(raw));
      Check(file->Sync());
    });
    Check(FileSystem::Real()->Remove(path));
    if (i == 0) continue;
    snapshot_s.push_back(snapshot);
    plain_s.push_back(plain);
  }
  const double snapshot = Median(snapshot_s);
  const double plain = Median(plain_s);
  return {{"bytes", bytes},
          {"snapshot_s", snapshot},
          {"gb_per_s", static_cast<double>(bytes) / snapshot / 1e9},
          {"plain_s", plain},
          {"plain_gb_per_s", static_cast<double>(bytes) / plain / 1e9},
          {"snapshot_of_plain", plain / snapshot}};
}

json MeasureRecovery(const Scratch& scratch, int64_t rounds, int repeats) {
  const std::string folder = scratch.File("recovery");
  const std::vector<uint8_t> object = RandomBytes(1000);
  const std::vector<float> values(250);
  {
    const auto store = Begin(folder, {.durable = false});
    for (int64_t i = 1; i <= rounds; ++i) {
      Check(Contribute(*store, i, object));
      v1::Round round;
      round.set_round(i);
      round.add_contributors("worker");
      round.add_weights(1.0);
      round.set_reason("every expected worker contributed (1)");
      Check(store->SaveRound(round, object));
      Check(store->ForgetAnswers(0, i));
      if (i % kRoundsPerSnapshot == 0) {
        FragmentView view;
        view.version = i;
        view.theta = values;
        view.published = values;
        Check(store->SaveSnapshot(view));
      }
    }
  }
  std::vector<double> recover_s;
  for (int i = 0; i < repeats; ++i) {
    recover_s.push_back(Seconds([&] {
      const auto store = Value(RunDirectoryStore::Open(*FileSystem::Real(), folder, {}));
      const auto run = Value(store->Recover());
      if (static_cast<int64_t>(run->rounds.size()) != rounds) {
        Check(absl::InternalError("rounds are missing"));
      }
    }));
  }
  return {{"rounds", rounds},
          {"database_bytes", Value(FileSystem::Real()->FileSize(JoinPath(folder, "run.db")))},
          {"recover_s", Median(recover_s)}};
}

int Main(int argc, char** argv) {
  if (!ParseCommandLine(argc, argv, "Times the store of a run directory.").empty()) {
    return Refuse(kProgram, absl::InvalidArgumentError("takes flags only"));
  }
  const bool quick = absl::GetFlag(FLAGS_quick);
  const int repeats = quick ? 2 : absl::GetFlag(FLAGS_repeats);
  const int64_t rounds = quick ? 200 : absl::GetFlag(FLAGS_rounds);
  const int64_t values = quick ? 1 << 16 : absl::GetFlag(FLAGS_snapshot_values);
  if (repeats < 1 || rounds < 1 || values < 1) {
    return Refuse(kProgram, absl::InvalidArgumentError(
                                "--repeats, --rounds and --snapshot_values must be at least 1"));
  }
  const Scratch scratch(absl::GetFlag(FLAGS_folder));
  json report;
  report["load_average"] = LoadAverage();
  report["contributions"] = json::array();
  for (const size_t mebibytes : {size_t{4}, size_t{8}}) {
    report["contributions"].push_back(MeasureContributions(scratch, mebibytes, repeats));
  }
  report["commits"] = MeasureCommits(scratch, repeats);
  report["snapshot"] = MeasureSnapshot(scratch, values, std::min(repeats, 3));
  report["recovery"] = MeasureRecovery(scratch, rounds, std::min(repeats, 5));
  report["load_average_after"] = LoadAverage();
  Print(report);
  return 0;
}

}  // namespace
}  // namespace causeway::bench

int main(int argc, char** argv) { return causeway::bench::Main(argc, argv); }
