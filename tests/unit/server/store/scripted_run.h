// A short life of a run, step by step, for tests that interrupt it anywhere.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "server/store/run_directory_store.h"
#include "server/store/store.h"

namespace causeway::server {

v1::RunIdentity ScriptedIdentity();

// Each worker's delta and each round's result: all of it follows from the arguments.
v1::Contribution ScriptedContribution(int fragment, int64_t round, const std::string& worker_id);
v1::Round ScriptedRound(int fragment, int64_t round);
std::vector<uint8_t> ScriptedObject(int fragment, int64_t round, const std::string& worker_id);
v1::Member ScriptedMember(const std::string& id, uint64_t incarnation);
// The first two with their objects, of which the round's is that of "answer".
absl::Status SaveDelta(Store& store, int fragment, int64_t round, const std::string& worker_id);
absl::Status SaveMerged(Store& store, int fragment, int64_t round);
// Saves a snapshot of two values.
absl::Status SaveTinySnapshot(Store& store, int fragment, int64_t version);
// The store of a new run. Ends the program if it does not open.
std::unique_ptr<RunDirectoryStore> BeginScriptedRun(FileSystem& disk, const std::string& folder,
                                                    const RunDirectoryStore::Options& options = {});

struct ScriptedStep {
  std::string name;  // "round 2 of fragment 0"
  std::function<absl::Status(Store&)> take;
};

// From BeginRun to the summary: two fragments, two workers, four rounds, snapshots that replace
// others, a quarantined delta, forgotten answers, members and flags that change. Every step makes
// at most one change that a recovery can see.
std::vector<ScriptedStep> ScriptedLife();

// Everything that can be read from a store that has just recovered `run`, as text: two stores that
// were told the same give the same.
absl::StatusOr<std::string> Fingerprint(Store& store, const std::optional<RecoveredRun>& run);

}  // namespace causeway::server
