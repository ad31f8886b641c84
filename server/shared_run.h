// A run that several machines share: the flags of `serve --etcd`.
#ifndef CAUSEWAY_SERVER_SHARED_RUN_H_
#define CAUSEWAY_SERVER_SHARED_RUN_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "server/given_run.h"
#include "server/link/parent_link.h"
#include "server/link/leading.h"
#include "server/store/run_directory_store.h"

namespace causeway::server {

// Nothing without --etcd. INVALID_ARGUMENT says what is missing. A region asks its parent for the
// run's name. `events` and `notes` are still to be set.
absl::StatusOr<std::optional<Leading::Options>> SharedRunFromFlags(
    FileSystem& file_system, const GivenRun& given, const ParentOptions& parent,
    const std::string& listen, const RunDirectoryStore::Options& store);

// Says what nobody can know who serves a copy without etcd, for the log.
std::string PromotedByHand(const std::string& folder, int64_t commits);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SHARED_RUN_H_
