// Here is how a run goes on without deltas that were in memory and are lost.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"
#include "server/store/run_directory_store.h"

namespace causeway::server {
namespace {

// The last round of each fragment whose state follows from its newest snapshot and the deltas that
// are there.
std::map<int, int64_t> LastRounds(const DatabaseContent& content, BlobFolder& blobs) {
  std::map<int, int64_t> last;
  for (const StoredSnapshot& row : content.snapshots) {
    int64_t& version = last[row.fragment];
    version = std::max(version, row.version);
  }
  std::map<std::pair<int, int64_t>, std::set<std::string>> there;
  for (const StoredContribution& row : content.contributions) {
    if (!row.delta.kept() || !blobs.CheckPresent(row.delta).ok()) continue;
    there[{row.record.fragment, row.record.round}].insert(row.record.worker_id);
  }
  for (const StoredRound& row : content.rounds) {  // In order.
    int64_t& round = last[row.record.fragment];
    if (row.record.round != round + 1) continue;
    const std::set<std::string>& deltas = there[{row.record.fragment, row.record.round}];
    if (std::ranges::all_of(row.record.contributors,
                            [&](const std::string& id) { return deltas.contains(id); })) {
      ++round;
    }
  }
  return last;
}

// DATA_LOSS if a delta that a round may need is there and damaged: a restart of the machine takes a
// delta as a whole, so this one has another cause.
absl::Status CheckNoneDamaged(const DatabaseContent& content, BlobFolder& blobs,
                              FileSystem& file_system) {
  std::map<int, int64_t> newest;
  for (const StoredSnapshot& row : content.snapshots) {
    newest[row.fragment] = std::max(newest[row.fragment], row.version);
  }
  for (const StoredContribution& row : content.contributions) {
    if (!row.delta.kept() || row.record.round <= newest[row.record.fragment]) continue;
    const absl::Status present = blobs.CheckPresent(row.delta);
    if (present.ok() || !file_system.Exists(blobs.Path(row.delta.file))) continue;
    return absl::Status(
        present.code(),
        absl::StrCat(present.message(),
                     ". --back_to_snapshots goes back behind deltas that are missing, not behind "
                     "damaged ones: restore the file, or remove it to lose its round as well"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunDirectoryStore::GoBack(const DatabaseContent& content) {
  RETURN_IF_ERROR(CheckNoneDamaged(content, blobs_, file_system_));
  const std::map<int, int64_t> last = LastRounds(content, blobs_);
  const auto is_after = [&](int fragment, int64_t round) {
    const auto found = last.find(fragment);
    return round > (found == last.end() ? 0 : found->second);
  };
  std::set<int> cut;  // Fragments that lose rounds.
  int64_t rounds = 0;
  for (const StoredRound& row : content.rounds) {
    if (!is_after(row.record.fragment, row.record.round)) continue;
    cut.insert(row.record.fragment);
    ++rounds;
  }
  std::vector<StoredContribution> gone;
  std::vector<StoredContribution> without_delta;
  for (const StoredContribution& row : content.contributions) {
    const int fragment = row.record.fragment;
    const bool lost = row.delta.kept() && !file_system_.Exists(blobs_.Path(row.delta.file));
    if (is_after(fragment, row.record.round) && (lost || cut.contains(fragment))) {
      gone.push_back(row);
    } else if (lost) {
      without_delta.push_back(row);
    }
  }
  if (rounds == 0 && gone.empty() && without_delta.empty()) return absl::OkStatus();
  const auto remove = [&](DatabaseEdit& edit) -> absl::Status {
    for (const StoredRound& row : content.rounds) {
      if (is_after(row.record.fragment, row.record.round)) RETURN_IF_ERROR(edit.Remove(row));
    }
    for (const StoredContribution& row : gone) RETURN_IF_ERROR(edit.Remove(row));
    for (StoredContribution& row : without_delta) {
      row.delta = {};
      RETURN_IF_ERROR(edit.Put(row));
    }
    RunState state = content.state;
    state.finish_recorded = state.finish_recorded && rounds == 0;
    return edit.Put(state);
  };
  RETURN_IF_ERROR(database_->Commit(remove));
  Log().warn("{} goes back to what can be merged again: {} rounds and {} deltas are lost", folder_,
             rounds, gone.size());
  return absl::OkStatus();
}

}  // namespace causeway::server
