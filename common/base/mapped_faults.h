// Mapped files (FileSystem::Map) that become shorter while they are read, or whose disk fails: the
// system then sends SIGBUS, which ends a process without a word.
#ifndef CAUSEWAY_COMMON_BASE_MAPPED_FAULTS_H_
#define CAUSEWAY_COMMON_BASE_MAPPED_FAULTS_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace causeway {

// From now on such a fault ends the process with status 1 and a line that names the file. Programs
// call it before they start threads.
void NameMappedFaults();

// Calls read(), which reads bytes of the mapped file `path`; after NameMappedFaults a fault ends
// that call alone: DATA_LOSS, naming the file. read() is left where the fault strikes, so it
// destroys nothing and holds no lock.
absl::Status ReadMapped(const std::string& path, absl::FunctionRef<void()> read);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_BASE_MAPPED_FAULTS_H_
