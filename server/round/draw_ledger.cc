#include "server/round/draw_ledger.h"

namespace causeway::server {
namespace {

std::pair<int, std::string> PartOf(int slot, const std::string& worker_id) {
  return {slot, slot == kOwnData ? worker_id : std::string()};
}

}  // namespace

DrawLedger::Part DrawLedger::Find(int slot, const std::string& worker_id) const {
  const auto found = parts_.find(PartOf(slot, worker_id));
  return found == parts_.end() ? Part{.reserve = reserve_} : found->second;
}

int64_t DrawLedger::DrawsOf(int64_t steps) const {
  if (steps <= 0) return 0;
  return steps > kMaxDraw / draws_per_step_ ? kMaxDraw : steps * draws_per_step_;
}

void DrawLedger::Give(int slot, int64_t step) {
  Part part = Find(slot, "");
  part.step = step;
  part.reserve = reserve_;
  parts_[PartOf(slot, "")] = part;
}

int64_t DrawLedger::PossibleEnd(int slot, int64_t step) const {
  if (slot == kOwnData) return kMaxDraw;
  const Part part = Find(slot, "");
  return std::min(kMaxDraw, part.next + DrawsOf(step - part.step) + part.reserve);
}

void DrawLedger::Add(const std::string& worker_id, const Draws& draws, int64_t step) {
  for (const DrawRange& range : draws) {
    Part part = Find(range.slot, worker_id);
    const int64_t drawn = std::max<int64_t>(0, range.end - part.next);
    part.reserve =
        std::clamp<int64_t>(part.reserve + DrawsOf(step - part.step) - drawn, 0, reserve_);
    part.next += drawn;
    part.step = std::max(part.step, step);
    parts_[PartOf(range.slot, worker_id)] = part;
  }
}

int64_t DrawLedger::NextDraw(int slot, const std::string& worker_id) const {
  return Find(slot, worker_id).next;
}

}  // namespace causeway::server
