// Files in memory, for what reads and writes them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tests/fuzz/target.h"
#include "tests/unit/common/base/fault_disk.h"

namespace causeway::fuzz {

// The file, in folders that are made for it, on a disk that is told of no fault.
inline void Put(FaultDisk& disk, const std::string& path, std::span<const uint8_t> bytes) {
  FUZZ_REQUIRE(
      disk.CreateFolders(ParentFolder(path)).ok() && disk.Create(path).value()->Append(bytes).ok(),
      "there is no file");
}

}  // namespace causeway::fuzz
