// live_scripted_run FOLDER: lives the scripted run in a process of its own, which crash points may
// kill. Writes one byte to standard output for each step that was acknowledged.
//
// live_scripted_run FOLDER --golden: makes golden/vN for golden_test.cc in that way. Only for a new
// format version N: what that test reads must stay as it was written.
#include <unistd.h>

#include "common/base/status_macros.h"
#include "tests/unit/server/store/scripted_run.h"

namespace causeway::server {
namespace {

absl::Status Live(const std::string& folder, bool durable) {
  ASSIGN_OR_RETURN(const auto store,
                   RunDirectoryStore::Open(*FileSystem::Real(), folder, {.durable = durable}));
  RETURN_IF_ERROR(store->Recover().status());
  for (const ScriptedStep& step : ScriptedLife()) {
    RETURN_IF_ERROR(step.take(*store));
    if (write(STDOUT_FILENO, "+", 1) != 1) return absl::InternalError("nobody listens");
  }
  return absl::OkStatus();
}

// Writes what the next opening finds into the folder.
absl::Status AddFingerprint(const std::string& folder) {
  FileSystem& file_system = *FileSystem::Real();
  std::string print;
  {
    ASSIGN_OR_RETURN(const auto store, RunDirectoryStore::Open(file_system, folder, {}));
    ASSIGN_OR_RETURN(const auto run, store->Recover());
    ASSIGN_OR_RETURN(print, Fingerprint(*store, run));
  }
  RETURN_IF_ERROR(file_system.Remove(JoinPath(folder, "LOCK")));
  return WriteFileAtomically(file_system, JoinPath(folder, "fingerprint"),
                             absl::string_view(print));
}

}  // namespace
}  // namespace causeway::server

int main(int argc, char** argv) {
  const bool golden = argc == 3 && absl::string_view(argv[2]) == "--golden";
  if (argc != 2 && !golden) {
    std::fputs("usage: live_scripted_run FOLDER [--golden]\n", stderr);
    return 2;
  }
  absl::Status status = causeway::server::Live(argv[1], /*durable=*/golden);
  if (status.ok() && golden) status = causeway::server::AddFingerprint(argv[1]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
