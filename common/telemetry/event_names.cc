#include "common/telemetry/event_names.h"

namespace causeway {
namespace {

using enum EventLevel;

constexpr EventName kCoordinatorEvents[] = {
    {"coordinator_started", kInfo},
    {"coordinator_stopped", kInfo},
    {"recovered", kInfo},
    {"model_brought", kInfo},
    {"worker_joined", kInfo},
    {"worker_ready", kInfo},
    {"worker_fenced", kWarn},
    {"worker_disconnected", kWarn},
    {"worker_lost", kWarn},
    {"worker_left", kInfo},
    {"join_refused", kWarn},
    {"access_refused", kWarn},
    {"training_started", kInfo},
    {"round_closed", kWarn},
    {"contribution_late", kWarn},
    {"draws_ignored", kWarn},
    {"tokens_cut", kWarn},
    {"contribution_quarantined", kWarn},
    {"hash_mismatch", kError},
    {"pace_set", kInfo},
    {"paused", kInfo},
    {"resumed", kInfo},
    {"draining", kInfo},
    {"worker_rejected", kWarn},
    {"stopping", kInfo},
    {"snapshot_damaged", kError},
    {"snapshot_saved", kInfo},
    {"snapshot_refused", kWarn},
    {"store_low", kWarn},
    {"store_has_room", kInfo},
    {"standby_attached", kInfo},
    {"standby_detached", kWarn},
    {"standby_missing", kWarn},
    {"standby_back", kInfo},
    {"standby_in_sync", kInfo},
    {"standby_out_of_sync", kWarn},
    {"certificate_expiring", kWarn},
    {"revocation_list_ending", kWarn},
    {"revocation_list_ended", kError},
    {"certificate_reloaded", kInfo},
    {"failed", kError},
    {"run_finished", kInfo},
};

constexpr EventName kWorkerEvents[] = {
    {"attached", kInfo},
    {"session_broke", kWarn},
    {"session_resumed", kInfo},
    {"session_failed", kError},
    {"checkpoint_restored", kInfo},
    {"checkpoint_stale", kWarn},
    {"state_fetched", kInfo},
    {"started_anew", kWarn},
    {"data_part_changed", kInfo},
    {"pace_changed", kInfo},
    {"ordered", kInfo},
    {"delta_late", kWarn},
    {"training_waited", kWarn},
    {"evaluated", kInfo},
    {"checkpoint_written", kInfo},
    {"checkpoint_failed", kWarn},
    {"draining", kInfo},
    {"transfers_cut", kWarn},
    {"buffers_small", kWarn},
    {"certificate_expiring", kWarn},
    {"certificate_reloaded", kInfo},
    {"finished", kInfo},
    {"left", kInfo},
    {"failed", kError},
};

}  // namespace

std::span<const EventName> CoordinatorEvents() { return kCoordinatorEvents; }
std::span<const EventName> WorkerEvents() { return kWorkerEvents; }

EventLevel LevelOf(absl::string_view event) {
  for (const std::span<const EventName> events : {CoordinatorEvents(), WorkerEvents()}) {
    for (const EventName& entry : events) {
      if (event == entry.name) return entry.level;
    }
  }
  return kInfo;
}

const char* LevelName(EventLevel level) {
  switch (level) {
    case kInfo:
      return "info";
    case kWarn:
      return "warn";
    case kError:
      return "error";
  }
  return "info";
}

}  // namespace causeway
