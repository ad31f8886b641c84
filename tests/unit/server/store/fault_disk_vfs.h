// SQLite on a FaultDisk, so that its files fail and are lost together with all others.
#pragma once

#include <sqlite3.h>

#include <string>

#include "tests/unit/common/base/fault_disk.h"

namespace causeway::server {

// Registered under a name of its own while it lives. The disk outlives it; databases on it end
// before.
class FaultDiskVfs {
 public:
  explicit FaultDiskVfs(FaultDisk& disk);
  ~FaultDiskVfs();
  FaultDiskVfs(const FaultDiskVfs&) = delete;
  FaultDiskVfs& operator=(const FaultDiskVfs&) = delete;

  const std::string& name() const { return name_; }

 private:
  std::string name_;
  sqlite3_vfs vfs_;
};

}  // namespace causeway::server
