// Is printed by `causeway-coordinator --help`.
#ifndef CAUSEWAY_SERVER_HELP_H_
#define CAUSEWAY_SERVER_HELP_H_

namespace causeway::server {

inline constexpr char kHelp[] = R"(causeway-coordinator runs the center of a Causeway run.

  causeway-coordinator serve --run_dir=FOLDER --config=FILE
      Starts a run and serves its workers until it is stopped (SIGTERM). If FOLDER holds a run, it
      goes on where it was, whatever ended the former coordinator; FILE may be left out then.
        --preset=best              paper, best, streaming, diloco or data-parallel; FILE's
                                   settings replace the preset's
        --initial=FILE             starts from these parameters, as `causeway-worker import` and
                                   `replay` write them, or from *.safetensors (a file, or a folder
                                   of them); the model is theirs if the configuration leaves it out
        --initial=first-site       waits until the first site brings them, and with them the model
        --listen=127.0.0.1:7070    port 0 takes any free one
        --address_file=FILE        receives HOST:PORT once it listens
        --http=auto                HOST:PORT of metrics and the status page, or off; auto:
                                   127.0.0.1:7071, or any free port, and off with TLS
        --http_address_file=FILE   receives that HOST:PORT once it is served
        --exit_when_finished       exits when every worker has left; with --noexit_when_drained
                                   not before the end of training: who was drained comes back
        --durability=full          none: nothing is synced to the disk; survives kill -9 only;
                                   replicated: what workers are told is on a standby, too
        --deltas_in=FOLDER         with replicated or --etcd: deltas are kept in this folder in
                                   memory, as /dev/shm/causeway, while a standby has them, too
        --back_to_snapshots        goes back to what is there if every machine has lost those
        --etcd=HOST:PORT,...       shares the run with coordinators of other machines: one leads,
                                   the others follow it until they lead; --config names the run
        --etcd_ca=FILE --etcd_cert=FILE --etcd_key=FILE  etcd's authority, and this machine's
                                   certificate there; without them etcd is spoken to in plaintext
        --etcd_password_file=FILE  USER:PASSWORD, where etcd asks for a user
        --advertise=HOST:PORT      where the others reach this one; else as --listen
        --standby_cert=FILE --standby_key=FILE  with TLS: an operator's, to follow with
        --shards=lead,a,b          the run's fragments lie in several coordinators, this one (lead)
                                   among them; workers join here
        --lead=HOST:PORT --shard=a one of the others, in place of --config; --advertise: where
                                   workers reach it
        --lead_tls_cert=FILE --lead_tls_key=FILE  this shard's there; else --tls_cert and its key
        --lead_tls_server_name=NAME  the host in the lead's certificate; else that of --lead
        --memory_mb=0              bounds what transfers take, in MiB; 0: the model of every
                                   member, and 1024
        --retain_deltas            keeps every delta, for replay
        --snapshot_every_rounds=10 a recovery merges so many rounds of each fragment again
        --congestion_control=auto  bbr where allowed; or system, cubic, ...
        --tls_cert=FILE --tls_key=FILE with --tls_ca=FILE (workers have certificates),
        --token_file=FILE (they have tokens) or both; --insecure: plaintext beyond this machine
        --max_requests_per_second=5000  of one worker
        --max_connections=0        0: 4096, or what max_workers and the limit of open files say
        --max_connections_per_address=0  0: a quarter of all, but enough for every worker
        --refused_identities=FILE  who is refused whatever his certificate or token says
        --tls_crl_dir=FOLDER       revocation lists, as openssl rehash names them
        --max_connection_age=24h   then a connection is made anew, by who still may

  causeway-coordinator follow --run_dir=FOLDER --of=HOST:PORT
      Keeps a copy of the run in FOLDER as it grows, and goes on where it was when it starts again.
      With TLS it has an operator's certificate or token. Once the coordinator is gone for good,
      `serve --run_dir=FOLDER` takes its place.
        --deltas_in=FOLDER         keeps deltas in memory, as `serve` does
        --standby_name=NAME        who follows, for people; else the machine's name (serve --etcd:
                                   this coordinator's)
        --http=auto                HOST:PORT of health and metrics of the copy, as `serve`

  causeway-coordinator serve --parent=HOST:PORT --region_id=NAME --sites=N --run_dir=FOLDER
      Serves a region: up to N workers near this machine, whose deltas go to the coordinator at
      HOST:PORT as one. The run is that coordinator's; the workers need no other flags. HOST:PORT,...
      names its standbys as well. With --etcd the region has standbys of its own.
        --parent_tls_cert=FILE --parent_tls_key=FILE, or --parent_token_file=FILE: by which the
                                   parent knows this region
        --parent_tls_server_name=NAME  the host in the parent's certificate; else that of --parent

  causeway-coordinator check-config --config=FILE [--preset=best]
      Prints the complete configuration, and warnings on standard error.

  causeway-coordinator inspect --run_dir=FOLDER [--json]
      Prints what the folder holds: rounds, members, versions, sizes, hashes. Changes nothing, and
      works while a coordinator owns it.

  causeway-coordinator replay --run_dir=FOLDER [--outer='learning_rate: 0.7'] [--without=WORKER] [--output=FILE]
      Merges every round again from the retained deltas and checks the recorded hashes; with
      --outer the deltas go through another outer optimizer, too, whose parameters FILE receives,
      with --without those of some workers do not.

  inspect, replay --run_dir=LEAD,SHARD,...: one run whose fragments are in several folders, all of
      them.

For all: --log_level=debug|info|warn|error. The release: --version
Exit status: 0 done, 1 failed on the way, 2 refused before anything started.
)";

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_HELP_H_
