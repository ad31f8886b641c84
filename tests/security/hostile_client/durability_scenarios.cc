// What a damaged disk, or a run directory that exists twice, does to a run.
#include <cstdint>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "tests/security/hostile_client/scenarios.h"
#include "tests/security/hostile_client/team.h"

namespace causeway::hostile {
namespace {

namespace fs = std::filesystem;

Outcome Failed(const absl::Status& status) {
  return {.held = false, .what = std::string(status.message())};
}

void FlipTheMiddle(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(fs::file_size(path) / 2);
  file.seekg(middle);
  const int byte = file.get();
  file.seekp(middle);
  file.put(static_cast<char>(byte ^ 1));
}

Outcome OlderSnapshot() {
  Run run({.snapshot_every_rounds = 2});
  if (const absl::Status status = run.Start(); !status.ok()) return Failed(status);
  Team team(run);
  std::vector<float> published;
  const auto play = [&]() -> absl::Status {
    RETURN_IF_ERROR(team.Enter());
    for (int64_t round = 1; round <= 5; ++round) {
      RETURN_IF_ERROR(team.DoRound(round));
      run.Maintain();
    }
    published = run.coordinator().PublishedParameters();
    return absl::OkStatus();
  };
  if (const absl::Status played = play(); !played.ok()) return Failed(played);
  run.Kill();
  fs::path newest;
  for (const auto& entry : fs::directory_iterator(run.folder() + "/snapshots")) {
    // Names begin with the number of the commit, of a fixed width.
    if (newest.empty() || entry.path().filename() > newest.filename()) newest = entry.path();
  }
  FlipTheMiddle(newest);
  if (const absl::Status status = run.Start(); !status.ok()) return Failed(status);
  const bool same = run.coordinator().PublishedParameters() == published;
  return {.held = same, .what = same ? "the same bits, from the older snapshot" : "other bits"};
}

// The run goes on at its place while a copy of it is served elsewhere, and its sites are told the
// copy's address.
Outcome RestoredCopy() {
  Run run({});
  if (const absl::Status status = run.Start(); !status.ok()) return Failed(status);
  const TestFolder elsewhere;
  Team team(run);
  const std::string copy_folder = elsewhere.path("copy");
  Run copy({.folder = copy_folder});
  const auto play = [&]() -> absl::Status {
    RETURN_IF_ERROR(team.Enter());
    for (int64_t round = 1; round <= 2; ++round) RETURN_IF_ERROR(team.DoRound(round));
    run.Kill();
    fs::copy(run.folder(), copy_folder, fs::copy_options::recursive);
    RETURN_IF_ERROR(run.Start());
    RETURN_IF_ERROR(team.Return());
    for (int64_t round = 3; round <= 4; ++round) RETURN_IF_ERROR(team.DoRound(round));
    return copy.Start();
  };
  if (const absl::Status played = play(); !played.ok()) return Failed(played);
  int merged = 0;
  absl::Status refused;
  for (int i = 0; i < kHonest; ++i) {
    absl::Status status = team.site(i).ReturnTo(copy);
    if (status.ok()) status = team.site(i).Deliver(team.site(i).MakePush(3));
    merged += status.ok();
    if (!status.ok()) refused = status;
  }
  return {.held = merged == 0,
          .what = merged == 0 ? absl::StrCat("refused: ", refused.message())
                              : absl::StrCat(merged,
                                             " of 3 pushes were merged by the copy, "
                                             "against other values")};
}

}  // namespace

std::vector<Scenario> DurabilityScenarios() {
  return {
      {"older_snapshot", "one bit of the newest snapshot is flipped", OlderSnapshot},
      {"restored_copy", "a copy of the run directory is served while the run has gone on",
       RestoredCopy},
  };
}

}  // namespace causeway::hostile
