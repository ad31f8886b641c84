// Whose a folder in memory is.
//
// A run directory names the folder in memory that its deltas may be in (DELTAS_IN); the file OWNER
// there names the run directory. A copy of a run directory has a DELTAS_IN as well, and would take
// the original's deltas for its own, to remove them.
#ifndef CAUSEWAY_SERVER_STORE_MEMORY_OWNER_H_
#define CAUSEWAY_SERVER_STORE_MEMORY_OWNER_H_

#include <string>

#include "absl/status/status.h"
#include "common/base/file_system.h"

namespace causeway::server {

inline constexpr char kOwnerFile[] = "OWNER";

// The same for every name of a folder, which may be missing.
std::string TrueName(const std::string& folder);

// The true name of the run directory that has that folder in memory; empty: none is named.
std::string OwnerOfMemory(FileSystem& file_system, const std::string& memory);

// FAILED_PRECONDITION if `memory` is that of another folder than `run_folder`, which is there and
// names it. OK if that one was renamed, if nobody is named, or if `memory` is empty.
absl::Status CheckMemoryIsOwn(FileSystem& file_system, const std::string& run_folder,
                              const std::string& memory);

// Names `run_folder` in `memory`, which is there.
absl::Status ClaimMemory(FileSystem& file_system, const std::string& run_folder,
                         const std::string& memory);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STORE_MEMORY_OWNER_H_
