// A text for a reader that wants the path of a file, such as gRPC: it is replaced as a whole, it is
// on no disk, and it goes with the process.
#ifndef CAUSEWAY_COMMON_RPC_REPLACED_FILE_H_
#define CAUSEWAY_COMMON_RPC_REPLACED_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace causeway {

// Not thread-safe; who reads the path needs no lock.
class ReplacedFile {
 public:
  // INTERNAL where the system has no such files.
  static absl::StatusOr<ReplacedFile> Make(absl::string_view text);

  // For this process alone.
  std::string path() const;
  // Whoever opens the path sees the former text or this one, each with another modification time in
  // seconds. On an error the former text stays.
  absl::Status Replace(absl::string_view text);

 private:
  ReplacedFile() = default;

  // Never closed: readers that outlive the object would find another file by its number.
  int descriptor_ = -1;
  int64_t modified_s_ = 0;
};

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_RPC_REPLACED_FILE_H_
