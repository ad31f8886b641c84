// What a caller of causeway_site.h hands over, checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/site/arena_site.h"
#include "worker/site/causeway_site.h"
#include "worker/site/device_values.h"

namespace causeway::worker {

inline constexpr absl::Duration kLongest = absl::Hours(24 * 365);

// INVALID_ARGUMENT: something must not be NULL.
absl::Status NullArgument(absl::string_view name);
// INVALID_ARGUMENT unless a struct has the size that this library knows.
absl::Status CheckSize(absl::string_view name, size_t size, size_t expected);

// All of them: INVALID_ARGUMENT with what was expected and what came.
absl::StatusOr<SiteJoin> ReadOptions(const causeway_site_options* options);
absl::StatusOr<std::optional<DeviceOptions>> ReadDevice(const causeway_device* device);
// Lists what each device is to own: what it has.
std::vector<TensorShare> SharesOf(const DeviceOptions& options);
absl::StatusOr<std::vector<TensorShare>> ReadShares(const causeway_site_options& options);
absl::StatusOr<std::vector<GivenTensor>> ReadTensors(const causeway_tensor* tensors, int64_t count);

}  // namespace causeway::worker
