// Writes the golden run directory of the present format: make_golden_run FOLDER
//
//   build/release/bin/make_golden_run tests/unit/server/store/golden/vN
//
// Only for a new format version N, or before version 1 was ever released: what golden_test.cc reads
// must stay as it was written.

#include "tests/unit/server/store/scripted_run.h"

namespace causeway::server {
namespace {

absl::Status Make(const std::string& folder) {
  FileSystem& file_system = *FileSystem::Real();
  std::string print;
  for (int opening = 0; opening < 2; ++opening) {
    auto store = RunDirectoryStore::Open(file_system, folder, {});
    if (!store.ok()) return store.status();
    const auto run = (*store)->Recover();
    if (!run.ok()) return run.status();
    if (*run) {
      auto found = Fingerprint(**store, *run);
      if (!found.ok()) return found.status();
      print = *found;
      continue;
    }
    for (const ScriptedStep& step : ScriptedLife()) {
      const absl::Status status = step.take(**store);
      if (!status.ok()) return status;
    }
  }
  absl::Status status = file_system.Remove(JoinPath(folder, "LOCK"));
  if (!status.ok()) return status;
  return WriteFileAtomically(file_system, JoinPath(folder, "fingerprint"),
                             absl::string_view(print));
}

}  // namespace
}  // namespace causeway::server

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: make_golden_run FOLDER\n", stderr);
    return 2;
  }
  const absl::Status status = causeway::server::Make(argv[1]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
