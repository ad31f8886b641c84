#include "server/store_flags.h"

#include <string>

#include "absl/flags/flag.h"

ABSL_FLAG(std::string, durability, "full",
          "full|none|replicated: what is acknowledged outlives a power loss; none: kill -9 only; "
          "replicated: the loss of the machine, as a standby has it, too");
ABSL_FLAG(bool, retain_deltas, false, "keeps every delta, for replay");
namespace causeway::server {
bool IsReplicatedByFlag() { return absl::GetFlag(FLAGS_durability) == "replicated"; }

RunDirectoryStore::Options StoreOptionsFromFlags() {
  return {.retain_deltas = absl::GetFlag(FLAGS_retain_deltas),
          .durable = absl::GetFlag(FLAGS_durability) != "none"};
}

}  // namespace causeway::server
