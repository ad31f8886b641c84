#include "worker/sync/replica.h"

#include "absl/strings/str_cat.h"

namespace causeway::worker {

absl::StatusOr<uint64_t> Replica::FinishMerge(int fragment) {
  return absl::InternalError(
      absl::StrCat("no merge of fragment ", fragment, " waits for being finished"));
}

}  // namespace causeway::worker
