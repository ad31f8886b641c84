// The flags of `serve` and `follow` that say how a run directory is kept.
#ifndef CAUSEWAY_SERVER_STORE_FLAGS_H_
#define CAUSEWAY_SERVER_STORE_FLAGS_H_

#include <string>

#include "absl/status/statusor.h"
#include "server/store/run_directory_store.h"

namespace causeway::server {

// `shared`: serve --etcd; `follows`: follow. INVALID_ARGUMENT says what does not go together.
absl::StatusOr<RunDirectoryStore::Options> StoreOptionsFromFlags(const std::string& run_dir,
                                                                 bool shared, bool follows);
// --durability=replicated.
bool IsReplicatedByFlag();

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STORE_FLAGS_H_
