// What a member keeps on its own machine once it has boarded a run (invitation.h).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/file_system.h"

namespace causeway {

struct IdentityFiles {
  explicit IdentityFiles(const std::string& folder)
      : authority(JoinPath(folder, "ca.pem")),
        certificate(JoinPath(folder, "cert.pem")),
        key(JoinPath(folder, "key.pem")),
        coordinator(JoinPath(folder, "coordinator")) {}
  std::string authority, certificate, key;
  std::string coordinator;  // HOST:PORT,... and the end of the line.
};

// The folder of a run's member: $XDG_CONFIG_HOME/causeway/RUN/NAME, or ~/.config/causeway/RUN/NAME.
// FAILED_PRECONDITION without either.
absl::StatusOr<std::string> DefaultIdentityFolder(absl::string_view run, absl::string_view name);

// With its parents, for this user alone as far as they are made. FAILED_PRECONDITION: the folder is
// there, and others may look into it.
absl::Status CreatePrivateFolder(FileSystem& file_system, const std::string& folder);
// As WriteFileAtomically, for this user alone.
absl::Status WritePrivateFile(FileSystem& file_system, const std::string& path,
                              absl::string_view text);

}  // namespace causeway
