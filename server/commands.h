// The commands of causeway-coordinator, and those of them that are not in main.cc. Flags are
// defined where they are read.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/cli/command_line.h"
#include "common/cli/program.h"
#include "common/rpc/security.h"

namespace causeway::server {

inline constexpr Command kCommands[] = {
    {.usage = "serve --run_dir=FOLDER --config=FILE",
     .about = "Starts a run and serves its workers until it is stopped (SIGTERM). If FOLDER holds "
              "a run, it goes on where it was, whatever ended the former coordinator; --config may "
              "be left out then.",
     .flags = "run_dir config preset initial listen address_file http http_address_file "
              "exit_when_finished exit_when_drained durability memory_mb model_in_memory "
              "retain_deltas snapshot_every_rounds congestion_control max_requests_per_second "
              "max_connections max_connections_per_address max_connection_age refused_identities "
              "tls authority advertise tls_crl_dir @credentials"},
    {.usage = "serve --etcd=HOST:PORT,... --run_dir=FOLDER --config=FILE",
     .about = "Shares the run with coordinators of other machines: one leads, the others follow it "
              "until they lead. --config names the run.",
     .flags = "etcd etcd_ca etcd_cert etcd_key etcd_password_file standby_name "
              "standby_cert standby_key"},
    {.usage = "serve --parent=HOST:PORT --region_id=NAME --sites=N --run_dir=FOLDER",
     .about = "Serves a region: up to N workers near this machine, whose deltas go to the "
              "coordinator at HOST:PORT as one. The run is that coordinator's; the workers need no "
              "other flags. With --etcd the region has standbys of its own.",
     .flags = "parent region_id sites identity parent_tls_cert parent_tls_key parent_token_file "
              "parent_tls_server_name"},
    {.usage = "follow --run_dir=FOLDER --of=HOST:PORT\nfollow --run_dir=FOLDER --join=LINE",
     .about = "Keeps a copy of the run in FOLDER as it grows, and goes on where it was when it "
              "starts again. With TLS it has an operator's invitation, certificate or token. Once "
              "the coordinator is gone for good, `serve --run_dir=FOLDER` takes its place.",
     .flags = "run_dir of join identity standby_name durability retain_deltas http "
              "http_address_file tls_server_name @credentials"},
    {.usage = "check-config --config=FILE",
     .about = "Prints the complete configuration, and warnings on standard error.",
     .flags = "config preset initial"},
    {.usage = "inspect --run_dir=FOLDER",
     .about = "Prints what the folder holds: rounds, members, versions, sizes, hashes. Changes "
              "nothing, and works while a coordinator owns it.",
     .flags = "run_dir json"},
    {.usage = "replay --run_dir=FOLDER",
     .about = "Merges every round again from the retained deltas and checks the recorded hashes; "
              "with --outer or --without the deltas go through another outer optimizer, or without "
              "those of some workers, as well.",
     .flags = "run_dir outer without output"},
};

inline constexpr FlagGroup kFlagGroups[] = {
    {.name = "credentials",
     .heading = "Credentials (serve, follow), certificates, tokens or both:",
     .flags = "tls_ca tls_cert tls_key token_file tls_refresh insecure"},
    {.heading = "For all commands:", .flags = "log_level"},
};

inline constexpr Program kCoordinatorProgram = {
    .name = "causeway-coordinator",
    .about = "causeway-coordinator runs the center of a Causeway run.",
    .commands = kCommands,
    .groups = kFlagGroups,
    .end =
        "Exit status: 0 done, 1 failed on the way, or nobody answered, 2 refused before "
        "anything\nstarted.\n"};

// Copies, by the command's flags and those of the store, until `stop_requested`, which waits for
// that long, says so: OK then. `refused` is set if an error came before anything was copied.
absl::Status FollowCommand(SecurityOptions credentials,
                           const std::function<bool(absl::Duration)>& stop_requested,
                           bool& refused);

// Prints what the folder holds, as lines or as JSON. A coordinator may own it meanwhile.
absl::Status InspectCommand(const std::string& run_dir);

// Merges all rounds of the folder again, checks their hashes and prints what came of it.
absl::Status ReplayCommand(const std::string& run_dir);

}  // namespace causeway::server
