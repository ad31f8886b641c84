#include "server/round/draw_ledger.h"

#include <algorithm>

namespace causeway::server {
namespace {

std::pair<int, std::string> PartOf(int slot, const std::string& worker_id) {
  return {slot, slot == kOwnData ? worker_id : std::string()};
}

}  // namespace

void DrawLedger::Add(const std::string& worker_id, const Draws& draws) {
  for (const DrawRange& range : draws) {
    int64_t& next = next_[PartOf(range.slot, worker_id)];
    next = std::max(next, range.end);
  }
}

int64_t DrawLedger::NextDraw(int slot, const std::string& worker_id) const {
  const auto found = next_.find(PartOf(slot, worker_id));
  return found == next_.end() ? 0 : found->second;
}

}  // namespace causeway::server
