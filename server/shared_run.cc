#include "server/opened_run.h"

#include <utility>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/client/reach.h"
#include "common/identity/authority.h"
#include "common/identity/certificate.h"
#include "common/rpc/certificate_watch.h"
#include "common/rpc/security.h"
#include "common/telemetry/log.h"
#include "server/access/own_authority.h"
#include "server/store/run_database.h"
#include "server/store/run_directory.h"

ABSL_FLAG(std::string, etcd, "",
          "HOST:PORT,...: the etcd by which the coordinators agree who leads");
ABSL_FLAG(std::string, advertise, "",
          "HOST:PORT: where others reach this one, invitations too; else as --listen");
ABSL_FLAG(
    std::string, etcd_ca, "",
    "FILE: whose signature under etcd's certificate counts; else etcd is spoken to in plaintext");
ABSL_FLAG(std::string, etcd_cert, "", "FILE: this machine's certificate there");
ABSL_FLAG(std::string, etcd_key, "", "FILE: its private key");
ABSL_FLAG(std::string, etcd_password_file, "", "FILE: USER:PASSWORD, where etcd asks for a user");
ABSL_FLAG(std::string, standby_cert, "", "FILE: with TLS: an operator's, to follow with");
ABSL_FLAG(std::string, standby_key, "", "FILE: its private key");

ABSL_DECLARE_FLAG(std::string, authority);
ABSL_DECLARE_FLAG(std::string, listen);
ABSL_DECLARE_FLAG(std::string, standby_name);

namespace causeway::server {
namespace {

// A run that was given none has no name to find each other by.
constexpr char kDefaultRunName[] = "run";

// The name of a region's run, which is its parent's. Its parent may be away where the folder knows
// it.
absl::StatusOr<std::string> NameOfParentsRun(FileSystem& file_system, const std::string& folder,
                                             const ParentOptions& parent) {
  const std::string path = JoinPath(folder, kDatabaseFile);
  if (file_system.Exists(path)) {
    ASSIGN_OR_RETURN(const auto locked, RunDirectoryStore::Open(file_system, folder, {}));
    ASSIGN_OR_RETURN(const auto database, RunDatabase::Open(path, {}));
    ASSIGN_OR_RETURN(const RecoveredRun run, database->Load(/*recent_rounds=*/1));
    return run.identity.config().run_name();
  }
  ASSIGN_OR_RETURN(const ReachedRun reached, ReachParent(parent));
  return reached.run.config().run_name();
}

// Each region has a lead of its own.
absl::StatusOr<std::string> RegionName(FileSystem& file_system, const std::string& folder,
                                       const ParentOptions& parent) {
  ASSIGN_OR_RETURN(const std::string run, NameOfParentsRun(file_system, folder, parent));
  if (run == kDefaultRunName) {
    return absl::InvalidArgumentError(
        absl::StrCat("--etcd needs a run_name in the configuration of the run at ", parent.address,
                     ": the coordinators of a region find each other by it and by --region_id"));
  }
  return absl::StrCat(run, "/", parent.region_id);
}

absl::StatusOr<std::string> RunName(FileSystem& file_system, const GivenRun& given) {
  if (!given.has_config()) {
    return absl::InvalidArgumentError(
        "--etcd needs --config=FILE, also where the folder holds the run: the coordinators of a "
        "run find each other by its run_name");
  }
  ASSIGN_OR_RETURN(const CompleteConfig complete, LoadConfig(file_system, given, given.model()));
  if (complete.config.run_name() == kDefaultRunName) {
    return absl::InvalidArgumentError(
        absl::StrCat("--etcd needs a run_name in ", given.config,
                     ": the coordinators of a run find each other by it"));
  }
  return complete.config.run_name();
}

absl::StatusOr<std::string> Address() {
  const std::string listen = absl::GetFlag(FLAGS_listen);
  const std::string given = absl::GetFlag(FLAGS_advertise);
  if (!given.empty()) {
    RETURN_IF_ERROR(Annotate(CheckAddress(given, /*allow_any_port=*/false), "--advertise"));
    return given;
  }
  if (!CheckAddress(listen, /*allow_any_port=*/false).ok() ||
      absl::StartsWith(listen, "0.0.0.0:") || absl::StartsWith(listen, "[::]:")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen=", listen,
                     " tells nobody where to find this coordinator: give "
                     "--advertise=HOST:PORT, where the others and the workers reach it"));
  }
  return listen;
}

absl::StatusOr<ChannelSecurity> EtcdSecurity() {
  SecurityOptions security;
  security.ca_file = absl::GetFlag(FLAGS_etcd_ca);
  security.cert_file = absl::GetFlag(FLAGS_etcd_cert);
  security.key_file = absl::GetFlag(FLAGS_etcd_key);
  if (!security.UsesTls()) return ChannelSecurity::Plaintext();
  if (security.ca_file.empty() || security.cert_file.empty() || security.key_file.empty()) {
    return absl::InvalidArgumentError(
        "--etcd_ca, --etcd_cert and --etcd_key must be given together: this machine recognizes "
        "etcd by the first, and etcd this machine by the others");
  }
  auto made = MakeChannelSecurity(security, absl::GetFlag(FLAGS_etcd), Clock::Real()->Now());
  RETURN_IF_ERROR(Annotate(made.status(), "--etcd_ca, --etcd_cert, --etcd_key"));
  LogSecurity(*made);
  return made;
}

absl::StatusOr<EtcdUser> EtcdUserFromFile() {
  const std::string file = absl::GetFlag(FLAGS_etcd_password_file);
  if (file.empty()) return EtcdUser();
  const absl::StatusOr<std::string> text = ReadTrustedFile(file, /*secret=*/true);
  RETURN_IF_ERROR(Annotate(text.status(), "--etcd_password_file"));
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(absl::StripAsciiWhitespace(*text), absl::MaxSplits(':', 1));
  if (parts.first.empty() || parts.second.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--etcd_password_file: ", file, " must have one line, USER:PASSWORD, of a user of etcd"));
  }
  return EtcdUser{.name = parts.first, .password = parts.second};
}

// By which this one follows. Where an authority is given it makes itself an operator, in memory.
absl::StatusOr<SecurityOptions> FollowerSecurity(FileSystem& file_system) {
  SecurityOptions security = SecurityOptionsFromFlags();
  security.cert_file = absl::GetFlag(FLAGS_standby_cert);
  security.key_file = absl::GetFlag(FLAGS_standby_key);
  security.token_file.clear();
  const std::string authority = absl::GetFlag(FLAGS_authority);
  if (authority.empty()) return security;
  if (!security.cert_file.empty() || !security.key_file.empty()) {
    return absl::InvalidArgumentError(
        "--standby_cert and --standby_key beside --authority, by which this coordinator makes "
        "itself an operator: leave them out");
  }
  ASSIGN_OR_RETURN(
      const KeyedCertificate made,
      MakeOperator(
          {.folder = {}, .given = authority, .run_name = kEveryRun, .file_system = &file_system},
          "standby"));
  ASSIGN_OR_RETURN(const ReplacedFile certificate, ReplacedFile::Make(made.certificate));
  ASSIGN_OR_RETURN(const ReplacedFile key, ReplacedFile::Make(made.key));
  security.ca_file = JoinPath(authority, "ca.pem");
  security.cert_file = certificate.path();
  security.key_file = key.path();
  security.server_name = kCoordinatorName;
  return security;
}

}  // namespace

absl::StatusOr<std::optional<Leading::Options>> SharedRunFromFlags(FileSystem& file_system,
                                                                   const GivenRun& given,
                                                                   const ParentOptions& parent) {
  Leading::Options options;
  options.etcd = absl::GetFlag(FLAGS_etcd);
  if (options.etcd.empty()) return std::optional<Leading::Options>();
  RETURN_IF_ERROR(Annotate(SplitAddresses(options.etcd).status(), "--etcd"));
  options.store = StoreOptionsFromFlags();
  if (!options.store.durable) {
    return absl::InvalidArgumentError(
        "--etcd and --durability=none: a run that is shared is replicated, and synced");
  }
  ASSIGN_OR_RETURN(options.etcd_security, EtcdSecurity());
  ASSIGN_OR_RETURN(options.etcd_user, EtcdUserFromFile());
  if (!options.etcd_user.name.empty() && !options.etcd_security.encrypted) {
    Log().warn("--etcd_password_file without --etcd_ca: the password goes to etcd in plaintext");
  }
  ASSIGN_OR_RETURN(options.address, Address());
  ASSIGN_OR_RETURN(options.run, parent.address.empty()
                                    ? RunName(file_system, given)
                                    : RegionName(file_system, given.run_dir, parent));
  options.name = absl::GetFlag(FLAGS_standby_name);
  options.folder = given.run_dir;
  options.file_system = &file_system;
  ASSIGN_OR_RETURN(const SecurityOptions security, FollowerSecurity(file_system));
  ASSIGN_OR_RETURN(options.security,
                   MakeChannelSecurity(security, options.address, Clock::Real()->Now()));
  LogSecurity(options.security);
  return std::optional<Leading::Options>(std::move(options));
}

}  // namespace causeway::server
