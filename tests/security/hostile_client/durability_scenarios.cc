// A run on a damaged disk, or in a run directory that exists twice.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "tests/security/hostile_client/scenarios.h"

namespace causeway::hostile {
namespace {

namespace fs = std::filesystem;

// Where a byte is changed; or what becomes of the whole file.
enum class Damage { kHead, kMiddle, kTail, kCut, kGone };
constexpr std::pair<Damage, const char*> kDamages[] = {{Damage::kHead, "head"},
                                                       {Damage::kMiddle, "middle"},
                                                       {Damage::kTail, "tail"},
                                                       {Damage::kCut, "cut"},
                                                       {Damage::kGone, "gone"}};

void Spoil(const fs::path& path, Damage damage) {
  const uint64_t size = fs::file_size(path);
  if (damage == Damage::kGone) {
    fs::remove(path);
  } else if (damage == Damage::kCut) {
    fs::resize_file(path, size / 2);
  } else if (size > 0) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto offset = static_cast<std::streamoff>(damage == Damage::kHead     ? 0
                                                    : damage == Damage::kMiddle ? size / 2
                                                                                : size - 1);
    file.seekg(offset);
    const int byte = file.get();
    file.seekp(offset);
    file.put(static_cast<char>(byte ^ 0x55));
  }
}

absl::Status DoFiveRounds(Stage& stage) {
  RETURN_IF_ERROR(stage.Begin());
  for (int64_t round = 1; round <= 5; ++round) {
    RETURN_IF_ERROR(stage.team->DoRound(round));
    stage.run.Maintain();
  }
  return absl::OkStatus();
}

absl::StatusOr<Outcome> OlderSnapshot() {
  Stage stage({.snapshot_every_rounds = 2});
  RETURN_IF_ERROR(DoFiveRounds(stage));
  Run& run = stage.run;
  const std::vector<float> published = run.coordinator().PublishedParameters();
  run.Kill();
  fs::path newest;
  for (const auto& entry : fs::directory_iterator(run.folder() + "/snapshots")) {
    // Names begin with the number of the commit, of a fixed width.
    if (newest.empty() || entry.path().filename() > newest.filename()) newest = entry.path();
  }
  Spoil(newest, Damage::kMiddle);
  RETURN_IF_ERROR(run.Start());
  const bool same = run.coordinator().PublishedParameters() == published;
  return Outcome{.held = same,
                 .what = same ? "the same bits, from the older snapshot" : "other bits"};
}

// Every file of a run directory, each in turn damaged in a copy: the copy's coordinator publishes
// what the run had published, or refuses and names the file.
absl::StatusOr<Outcome> DamagedFiles() {
  Stage stage({.snapshot_every_rounds = 2});
  RETURN_IF_ERROR(DoFiveRounds(stage));
  Run& run = stage.run;
  Site& site = stage.team->site(0);
  RETURN_IF_ERROR(site.Deliver(site.MakePush(6)));
  const std::vector<float> published = run.coordinator().PublishedParameters();
  // As after a kill: with the database's log.
  const TestFolder folder;
  const fs::path whole = folder.path("whole");
  fs::copy(run.folder(), whole, fs::copy_options::recursive);
  fs::remove(whole / "LOCK");
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(whole)) {
    if (entry.is_regular_file()) files.push_back(fs::relative(entry.path(), whole));
  }
  std::sort(files.begin(), files.end());
  Outcome outcome = {.held = true};
  int recovered = 0;
  int refused = 0;
  for (const fs::path& file : files) {
    std::string line = file.string();
    for (const auto& [damage, name] : kDamages) {
      const std::string copy_folder = folder.path("copy");
      fs::remove_all(copy_folder);
      fs::copy(whole, copy_folder, fs::copy_options::recursive);
      Spoil(fs::path(copy_folder) / file, damage);
      Run copy({.folder = copy_folder});
      const absl::Status status = copy.Start();
      const bool same = status.ok() && copy.coordinator().PublishedParameters() == published;
      // A damaged log is found by what it lacks.
      const std::string stem = file.string() == "run.db-wal" ? "run.db" : file.string();
      const bool named = !status.ok() && absl::StrContains(status.message(), stem);
      recovered += same;
      refused += named;
      absl::StrAppend(&line, "  ", name, ": ",
                      same    ? "recovered"
                      : named ? "refused by name"
                              : "FELL");
      if (!same && !named) {
        outcome.held = false;
        absl::StrAppend(&line, " (", status.ok() ? "other bits" : status.message(), ")");
      }
    }
    outcome.table.push_back(std::move(line));
  }
  outcome.what =
      absl::StrCat(recovered, " damages recovered with the same bits, ", refused,
                   " refused by the file's name, of ", files.size() * std::size(kDamages));
  return outcome;
}

// The run goes on at its place while a copy of it is served elsewhere, and its sites are told the
// copy's address.
absl::StatusOr<Outcome> RestoredCopy() {
  Stage stage;
  RETURN_IF_ERROR(stage.Begin());
  Run& run = stage.run;
  Team& team = *stage.team;
  const TestFolder elsewhere;
  const std::string copy_folder = elsewhere.path("copy");
  Run copy({.folder = copy_folder});
  for (int64_t round = 1; round <= 2; ++round) RETURN_IF_ERROR(team.DoRound(round));
  run.Kill();
  fs::copy(run.folder(), copy_folder, fs::copy_options::recursive);
  RETURN_IF_ERROR(run.Start());
  RETURN_IF_ERROR(team.Return());
  for (int64_t round = 3; round <= 4; ++round) RETURN_IF_ERROR(team.DoRound(round));
  RETURN_IF_ERROR(copy.Start());
  int merged = 0;
  absl::Status refused;
  for (int i = 0; i < kHonest; ++i) {
    absl::Status status = team.site(i).ReturnTo(copy);
    if (status.ok()) status = team.site(i).Deliver(team.site(i).MakePush(3));
    merged += status.ok();
    if (!status.ok()) refused = status;
  }
  return Outcome{.held = merged == 0,
                 .what = merged == 0 ? absl::StrCat("refused: ", refused.message())
                                     : absl::StrCat(merged,
                                                    " of 3 pushes were merged by the copy, "
                                                    "against other values")};
}

// As on a file system whose locks do not hold: the file that says that the directory is in use is
// gone, and somebody starts the run a second time.
absl::StatusOr<Outcome> SecondCoordinator() {
  constexpr int64_t kRounds = 4;
  Stage stage;
  RETURN_IF_ERROR(stage.Begin());
  Run& run = stage.run;
  Run second({.folder = run.folder()});
  absl::Status refused;
  for (int64_t round = 1; round <= kRounds; ++round) {
    if (round == kRounds / 2) {
      fs::remove(fs::path(run.folder()) / "LOCK");
      refused = second.Start();
    }
    RETURN_IF_ERROR(stage.team->DoRound(round));
  }
  if (refused.ok()) return Outcome{.held = false, .what = "both serve the run"};
  RETURN_IF_ERROR(CompareWithAlone(run, {}, kRounds));
  return Outcome{.held = true,
                 .what = absl::StrCat("the second one is refused (", refused.message(),
                                      "); the first goes on with the bits of the honest run")};
}

}  // namespace

std::vector<Scenario> DurabilityScenarios() {
  return {
      {"older_snapshot", "one byte of the newest snapshot is changed", OlderSnapshot},
      {"damaged_files", "every file of a run directory, each in five ways", DamagedFiles},
      {"restored_copy", "a copy of the run directory is served while the run has gone on",
       RestoredCopy},
      {"second_coordinator", "the run is started a second time in its directory, without the lock",
       SecondCoordinator},
  };
}

}  // namespace causeway::hostile
