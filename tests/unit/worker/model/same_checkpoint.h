// Whether two checkpoints of a worker are the same, bit for bit.
#pragma once

#include <algorithm>
#include <cstring>

#include "common/params/run_config.h"
#include "worker/model/worker_checkpoint.h"

namespace causeway::worker {

inline bool Same(const WorkerCheckpoint& a, const WorkerCheckpoint& b) {
  const auto same = [](const auto& x, const auto& y) {
    return x.size() == y.size() &&
           (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(x[0])) == 0);
  };
  const auto same_fragments = [&](const auto& x, const auto& y) {
    return x.version == y.version && x.tokens == y.tokens && x.draws == y.draws &&
           x.round_in_flight == y.round_in_flight && x.tokens_in_flight == y.tokens_in_flight &&
           x.draws_in_flight == y.draws_in_flight && same(x.object_in_flight, y.object_in_flight) &&
           same(x.held, y.held);
  };
  return a.run_id == b.run_id && a.worker_id == b.worker_id &&
         FormatRunConfig(a.config) == FormatRunConfig(b.config) && a.data_slot == b.data_slot &&
         a.step == b.step && a.tokens == b.tokens && a.pace_milli == b.pace_milli &&
         a.pace_carry_milli == b.pace_carry_milli && a.optimizer_updates == b.optimizer_updates &&
         same(a.parameters, b.parameters) && same(a.gaps, b.gaps) &&
         same(a.first_moments, b.first_moments) && same(a.second_moments, b.second_moments) &&
         same(a.sync.published, b.sync.published) && same(a.sync.residual, b.sync.residual) &&
         a.sync.next_draw == b.sync.next_draw &&
         std::ranges::equal(a.sync.fragments, b.sync.fragments, same_fragments);
}

}  // namespace causeway::worker
