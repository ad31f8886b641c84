// Whether a path is on a file system on which the lock of a run directory may hold on one machine
// only.
#ifndef CAUSEWAY_SERVER_STORE_NETWORK_FILE_SYSTEM_H_
#define CAUSEWAY_SERVER_STORE_NETWORK_FILE_SYSTEM_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace causeway::server {

// Names a type as statfs gives it (f_type): "NFS", say; empty for a file system of this machine, or
// one that is not known.
absl::string_view NetworkFileSystemName(int64_t type);
// Names that of an existing path; empty also where the system does not say.
absl::string_view NetworkFileSystemOf(const std::string& path);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STORE_NETWORK_FILE_SYSTEM_H_
