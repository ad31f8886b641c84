// A folder whose content changes in one step, on the machine's disks.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace causeway {

// Makes ".NAME.replacing" beside `folder`, copies into it those plain files of `folder` that
// `is_kept` names, calls `write` with its path, and exchanges both (renameat2): whoever opens
// `folder` finds all of the old content or all of the new, also after a crash. Then what else was
// in `folder` but files that are not kept, such as folders, moves over, and the old one goes. Where
// the file system cannot exchange, two renames follow each other, and for that moment there is no
// `folder`.
//
// Needs room for both. After an error `folder` is as it was, unless the error says otherwise.
// FAILED_PRECONDITION if ".NAME.replacing" exists: somebody is at it, or was killed.
absl::Status ReplaceFolder(const std::string& folder,
                           const std::function<bool(absl::string_view name)>& is_kept,
                           const std::function<absl::Status(const std::string& path)>& write);

// Refuses what it can before anything is made: FAILED_PRECONDITION if `folder` is a mount point,
// whose place nothing else can take, or if its parent cannot be written.
absl::Status CheckReplaceable(const std::string& folder);

}  // namespace causeway
