// What the control groups of this process leave it: those that Slurm's --mem, systemd's MemoryMax=
// and CPUQuota=, and containers make.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/file_system.h"

namespace causeway {

struct ControlGroupLimits {
  // Bytes that it may still take, cache that the kernel can drop not counted; none: no limit.
  std::optional<int64_t> memory_left = std::nullopt;
  double cores = 0;  // 0: no limit.
};

// The least of the process's own groups and of all above them that it can see, of version 1 and 2.
// What cannot be read limits nothing. `root` is "" but for tests.
ControlGroupLimits ReadControlGroupLimits(FileSystem& file_system, const std::string& root = "");

// Cores that this process may use, at least 1: those that the system has for it, and no more than
// the limit rounded up. More threads than that wait for each other.
int UsableCores(const ControlGroupLimits& limits);

}  // namespace causeway
