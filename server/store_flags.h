// The flags of `serve` and `follow` that say how a run directory is kept.
#ifndef CAUSEWAY_SERVER_STORE_FLAGS_H_
#define CAUSEWAY_SERVER_STORE_FLAGS_H_

#include "server/store/run_directory_store.h"

namespace causeway::server {

RunDirectoryStore::Options StoreOptionsFromFlags();
// --durability=replicated.
bool IsReplicatedByFlag();

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STORE_FLAGS_H_
