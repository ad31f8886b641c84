// One run whose fragments lie in several folders: a lead's and its shards'.
#ifndef CAUSEWAY_SERVER_STORE_RUN_PARTS_H_
#define CAUSEWAY_SERVER_STORE_RUN_PARTS_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "server/store/store.h"

namespace causeway::server {

// A folder, and the run that it says it holds.
struct RunPart {
  std::string folder;
  const RunIdentity* identity;
};

// The folders of --run_dir: one, or several with commas between. One whose name has commas counts
// as one. INVALID_ARGUMENT for one that is there twice, by whatever names, and for an empty name.
absl::StatusOr<std::vector<std::string>> RunFolders(FileSystem& file_system,
                                                    const std::string& list);

// The fragments that the folder has, ascending: those whose first values were hashed.
std::vector<int> FragmentsOf(const RunIdentity& identity);

// The lead's place among the parts of a whole run. INVALID_ARGUMENT, naming folders and fragments,
// for one that is there twice or of another run, and where the lead or fragments are missing.
absl::StatusOr<size_t> CheckWholeRun(FileSystem& file_system, std::span<const RunPart> parts);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STORE_RUN_PARTS_H_
