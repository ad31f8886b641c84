#include <cstdlib>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/client/boarding.h"

ABSL_FLAG(std::string, join, "",
          "LINE|@FILE|RUN[/NAME]|./FOLDER: an invitation (causewayctl invite), or what came of it, "
          "in place of address and certificates; also CAUSEWAY_JOIN in the environment");
ABSL_FLAG(std::string, identity, "",
          "FOLDER: of an invitation's key and certificate; else ~/.config/causeway/RUN/NAME");

namespace causeway {

absl::StatusOr<std::unique_ptr<IdentityKeeper>> BoardByFlags(absl::Duration patience,
                                                             std::string& coordinator,
                                                             std::string* id,
                                                             SecurityOptions& security,
                                                             const std::vector<Role>& roles) {
  constexpr char kVariable[] = "CAUSEWAY_JOIN";
  std::string join = absl::GetFlag(FLAGS_join);
  std::string source = "--join";
  if (const char* const given = std::getenv(kVariable); join.empty() && given != nullptr) {
    join = given;
    source = kVariable;
    if (join.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          kVariable,
          " is set, and empty: did the command fail that was to make the line? Unset it, "
          "or give what --join takes"));
    }
  }
  if (join.empty()) {
    if (absl::GetFlag(FLAGS_identity).empty()) return nullptr;
    return absl::InvalidArgumentError("--identity without --join has no use");
  }
  if (security.UsesTls() || !security.token_file.empty() || security.insecure ||
      !security.server_name.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        source,
        " together with --tls_ca, --tls_cert, --tls_key, --tls_server_name, "
        "--token_file or --insecure: an invitation brings its own; give one or the other"));
  }
  absl::StatusOr<Boarded> found = Board(join, absl::GetFlag(FLAGS_identity), patience, roles);
  RETURN_IF_ERROR(Annotate(found.status(), source));
  Boarded& boarded = *found;
  if (id != nullptr) {
    if (!id->empty() && *id != boarded.identity.name) {
      return absl::InvalidArgumentError(
          absl::StrCat(source, " is for ", boarded.identity.name, ", not for ", *id));
    }
    *id = boarded.identity.name;
  }
  boarded.security.refresh_interval = security.refresh_interval;
  security = boarded.security;
  // One that has moved since may be given beside it.
  const absl::CommandLineFlag* const where = absl::FindCommandLineFlag("coordinator");
  if (where == nullptr || where->CurrentValue() == where->DefaultValue()) {
    coordinator = boarded.coordinator;
  }
  boarded.coordinator = coordinator;
  if (boarded.folder.empty()) return nullptr;
  return std::make_unique<IdentityKeeper>(*std::move(found));
}

}  // namespace causeway
