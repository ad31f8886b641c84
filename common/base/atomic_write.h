// WriteFileAtomically (file_system.h) for content that is not in one piece.
#ifndef CAUSEWAY_COMMON_BASE_ATOMIC_WRITE_H_
#define CAUSEWAY_COMMON_BASE_ATOMIC_WRITE_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "common/base/file_system.h"

namespace causeway {

// Replaces `path` by what `write` appends; the first error of `write` ends it. After an error the
// old content stands, and path + ".tmp" is gone, so that a full disk is not left fuller.
absl::Status WriteFileAtomically(FileSystem& file_system, const std::string& path,
                                 const std::function<absl::Status(WritableFile&)>& write);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_BASE_ATOMIC_WRITE_H_
