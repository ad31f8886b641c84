// Who trained what, from the record of contributions.
#ifndef CAUSEWAY_SERVER_STORE_DRAW_REPORT_H_
#define CAUSEWAY_SERVER_STORE_DRAW_REPORT_H_

#include <vector>

#include "nlohmann/json.hpp"
#include "server/store/store.h"

namespace causeway::server {

// One entry for every part of the data that was drawn (a worker's own data are a part, too), sorted
// by data_slot, then worker:
//   {"data_slot" (-1: own data), "worker_id" (null: the part is shared),
//    "trained_by": [{"worker_id", "draws" (common/params/draws.h), "count"}],
//    "next_draw",   // Beyond the last one.
//    "skipped",     // Draws before it that no delta was trained on.
//    "repeated"}    // The most draws that any one fragment got more than once.
// Draws of several fragments count once, quarantined deltas as any other: they were trained, if in
// vain.
nlohmann::json ReportDraws(const std::vector<v1::Contribution>& contributions);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STORE_DRAW_REPORT_H_
