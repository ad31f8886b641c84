#include "worker/group/local_group.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace causeway::worker {

int64_t GroupTypeBytes(GroupType type) {
  switch (type) {
    case GroupType::kFloat:
      return sizeof(float);
    case GroupType::kBf16:
      return sizeof(uint16_t);
    case GroupType::kDouble:
      return sizeof(double);
    case GroupType::kInt64:
      return sizeof(int64_t);
    case GroupType::kByte:
      return 1;
  }
  return 0;
}

absl::Status CheckBounds(std::span<const int64_t> bounds, int pieces) {
  if (std::ssize(bounds) == pieces + 1 && bounds.front() >= 0 && std::ranges::is_sorted(bounds)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("an array of ", pieces, " pieces has ", pieces + 1,
                                                 " ascending bounds, not these ", bounds.size()));
}

}  // namespace causeway::worker
