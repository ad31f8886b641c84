// Which shard has which fragments.
#ifndef CAUSEWAY_SERVER_SHARDS_DEAL_H_
#define CAUSEWAY_SERVER_SHARDS_DEAL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_system.h"

namespace causeway::server {

// The lead's name among those of --shards.
inline constexpr char kLeadName[] = "lead";

struct DealtShard {
  std::string name;
  std::vector<int> fragments;  // Ascending.
  bool begun = false;          // It has a folder with the run.
  bool ended = false;          // It has heard that the run is finished, and need not come again.

  friend bool operator==(const DealtShard&, const DealtShard&) = default;
};

// Deals fragments of these sizes, in the order of their sends, to so many shards, 1 to
// sizes.size(). As few neighbours of the schedule as can be are on one shard, the last and the
// first being neighbours, too: what is sent one after the other goes to different machines. Under
// this, the largest share is small. Pure.
std::vector<std::vector<int>> DealFragments(const std::vector<int64_t>& sizes, int shards);

// The names of --shards, with commas between. INVALID_ARGUMENT for one that is malformed or there
// twice, for fewer than two, and for more than there are fragments.
absl::StatusOr<std::vector<std::string>> ParseShardNames(const std::string& list);

// The deal of the run in `folder`, which stands as long as the run; nothing if there is none.
// DATA_LOSS for a file that nobody here wrote.
absl::StatusOr<std::optional<std::vector<DealtShard>>> ReadDeal(FileSystem& file_system,
                                                                const std::string& folder);
// Durable when it returns.
absl::Status WriteDeal(FileSystem& file_system, const std::string& folder,
                       const std::vector<DealtShard>& deal);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SHARDS_DEAL_H_
