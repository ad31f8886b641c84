#include "common/telemetry/event_log.h"

namespace causeway {
namespace {

constexpr char kInfo[] = "info";
constexpr char kWarn[] = "warn";
constexpr char kError[] = "error";

// An event's comment, where its name does not say all, goes to docs/monitoring.md.
constexpr EventName kCoordinatorEvents[] = {
    // It listens.
    {"coordinator_started", kInfo},
    // It ends; `code` is OK, or why it failed.
    {"coordinator_stopped", kInfo},
    // It took over the run in its folder.
    {"recovered", kInfo},
    // The first site brought the model (`--initial=first-site`).
    {"model_brought", kInfo},
    // It got a lease; `resumes`: from its checkpoint.
    {"worker_joined", kInfo},
    // It takes part from that step on.
    {"worker_ready", kInfo},
    // A newer incarnation attached.
    {"worker_fenced", kWarn},
    // Its stream is over; the lease goes on.
    {"worker_disconnected", kWarn},
    // Its lease ended without a word.
    {"worker_lost", kWarn},
    // It said good-bye: finished, drained or failed.
    {"worker_left", kInfo},
    // Another run, configuration, release or data, an id in use, or an old copy of the run.
    {"join_refused", kWarn},
    // No valid identity, or a role that may not.
    {"access_refused", kWarn},
    // An operator invited a name (causewayctl invite).
    {"invitation_made", kInfo},
    // And took that back.
    {"invitation_revoked", kInfo},
    // A machine has boarded by it.
    {"invitation_used", kInfo},
    // By the run's own authority.
    {"certificate_renewed", kInfo},
    // Another machine came with a line that was used.
    {"invitation_refused", kWarn},
    // `start_workers` were ready.
    {"training_started", kInfo},
    // Without somebody.
    {"round_closed", kWarn},
    {"contribution_late", kWarn},
    // It claims text of parts that its worker never had, or (`ahead`) more than it can have
    // trained: the delta counts, the claim does not.
    {"draws_ignored", kWarn},
    // It claims more tokens than it [can have](SECURITY.md#what-a-member-is-believed).
    {"tokens_cut", kWarn},
    // Kept, not merged. `why`: outlier (against the fragment's median), cap
    // (`membership.norm_cap`), overflow, rejected (by an operator).
    {"contribution_quarantined", kWarn},
    // A worker's copy differs: it is ended.
    {"hash_mismatch", kError},
    {"pace_set", kInfo},
    {"paused", kInfo},
    {"resumed", kInfo},
    // An operator asked a worker, or all (""), to leave.
    {"draining", kInfo},
    // An operator keeps its deltas out, or (`undo`) lets them in again. `round` 0, `fragment` -1:
    // all from the open rounds on.
    {"worker_rejected", kWarn},
    // Where training ends, by an operator or the token budget.
    {"stopping", kInfo},
    // At a start: the run goes on from the one before.
    {"snapshot_damaged", kError},
    {"snapshot_saved", kInfo},
    // No room for a fragment's snapshot; it is tried again.
    {"snapshot_refused", kWarn},
    // No room for a delta: workers try again.
    {"store_low", kWarn},
    {"store_has_room", kInfo},
    // A standby follows: its copy has `commits`, and lacks `behind`.
    {"standby_attached", kInfo},
    {"standby_detached", kWarn},
    // Everybody waits until a standby has that commit; the furthest has `held`.
    {"standby_missing", kWarn},
    {"standby_back", kInfo},
    // With `--etcd`: its copy has all that was told, and may lead.
    {"standby_in_sync", kInfo},
    // With `--etcd`: the coordinator goes on without it.
    {"standby_out_of_sync", kWarn},
    // Its certificate ends within a week, or cannot be read; once a day.
    {"certificate_expiring", kWarn},
    // A list of `--tls_crl_dir` is near its end, cannot be read, or was replaced in place; once a
    // day.
    {"revocation_list_ending", kWarn},
    // New connections with certificates of its authority are refused; once an hour.
    {"revocation_list_ended", kError},
    // Its files have changed and count for new connections.
    {"certificate_reloaded", kInfo},
    // They have changed, are not whole or do not fit together: those before count.
    {"certificate_unfit", kWarn},
    // Store or merge failed: the coordinator stops.
    {"failed", kError},
    {"run_finished", kInfo},
};

constexpr EventName kWorkerEvents[] = {
    // The coordinator has welcomed it.
    {"attached", kInfo},
    // The stream to the coordinator ended, or is not welcome yet; it tries again.
    {"session_broke", kWarn},
    {"session_resumed", kInfo},
    // It cannot, or was told not to.
    {"session_failed", kError},
    // It goes on from its checkpoint.
    {"checkpoint_restored", kInfo},
    // Too old: it takes the published weights.
    {"checkpoint_stale", kWarn},
    // It has the published state and begins there.
    {"state_fetched", kInfo},
    // It was away too long: it took the published state.
    {"started_anew", kWarn},
    // From that step on.
    {"data_part_changed", kInfo},
    // From that step on.
    {"pace_changed", kInfo},
    // The coordinator said START, PAUSE, RESUME, DRAIN, STOP_AT_STEP or SET_PACE.
    {"ordered", kInfo},
    // It came after the round had closed; it travels with the next.
    {"delta_late", kWarn},
    // For an answer, five seconds or more.
    {"training_waited", kWarn},
    // The published parameters on held-out text, nats per token.
    {"evaluated", kInfo},
    {"checkpoint_written", kInfo},
    // The one before stands, and training goes on until the next try.
    {"checkpoint_failed", kWarn},
    // It finishes its transfers before it leaves.
    {"draining", kInfo},
    // They outlasted `--drain_timeout` and stay in the checkpoint.
    {"transfers_cut", kWarn},
    // The kernel's buffers hold the link down (docs/links.md#buffers).
    {"buffers_small", kWarn},
    // Its certificate ends within a week, or cannot be read; once a day.
    {"certificate_expiring", kWarn},
    // Its files have changed and count for new connections.
    {"certificate_reloaded", kInfo},
    // They have changed, are not whole or do not fit together: those before count.
    {"certificate_unfit", kWarn},
    // The budget is spent, all is merged.
    {"finished", kInfo},
    {"left", kInfo},
    // Training failed.
    {"failed", kError},
};

}  // namespace

std::span<const EventName> CoordinatorEvents() { return kCoordinatorEvents; }
std::span<const EventName> WorkerEvents() { return kWorkerEvents; }

const char* LevelOf(absl::string_view event) {
  for (const std::span<const EventName> events : {CoordinatorEvents(), WorkerEvents()}) {
    for (const EventName& entry : events) {
      if (event == entry.name) return entry.level;
    }
  }
  return kInfo;
}

}  // namespace causeway
