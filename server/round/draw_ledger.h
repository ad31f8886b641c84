// How far each part of a run's data has been drawn, by what was contributed.
//
// Pure bookkeeping: no lock, no I/O; the caller serializes the calls. What a worker trained without
// contributing it is not in the ledger: whoever takes its part over trains it again.
//
// The draws of a delta are its worker's own word. A worker that claims draws which it has not
// trained would keep whoever has its part later from that text, so it is believed only as far as it
// can have got: a step draws so many windows, and the rounds say how many steps have passed since
// the part's last contribution, or since it was given to somebody. Besides there is a reserve, for
// what was trained and not contributed yet, and for steps that a checkpoint lets a worker repeat. A
// claim may use it once; a part that is given to somebody has it anew.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "common/params/draws.h"

namespace causeway::server {

// Not thread-safe. Steps are those of the schedule.
class DrawLedger {
 public:
  // `draws_per_step`: windows of one inner step. `reserve_steps`: see above.
  DrawLedger(int64_t draws_per_step, int64_t reserve_steps)
      : draws_per_step_(draws_per_step), reserve_(DrawsOf(reserve_steps)) {}

  // Somebody begins, or goes on, to draw that part at that step.
  void Give(int slot, int64_t step);

  // The end of what a contribution to a round that is sent at `step` can have drawn of that part.
  // Anything goes for kOwnData, which is nobody else's.
  int64_t PossibleEnd(int slot, int64_t step) const;
  // Books the draws of an accepted contribution to such a round.
  void Add(const std::string& worker_id, const Draws& draws, int64_t step);

  // Beyond every draw of that part (kOwnData: of that worker's own data) that any accepted
  // contribution to any fragment was trained on. 0 if there was none.
  int64_t NextDraw(int slot, const std::string& worker_id) const;

 private:
  struct Part {
    int64_t next = 0;
    int64_t step = 0;     // Up to which its draws are accounted for.
    int64_t reserve = 0;  // Draws that are left of it.
  };
  // The part, or what it is before anybody had it.
  Part Find(int slot, const std::string& worker_id) const;
  // Returns the draws of so many steps, kMaxDraw at most.
  int64_t DrawsOf(int64_t steps) const;

  const int64_t draws_per_step_;
  const int64_t reserve_;
  // Parts by data slot and worker id, which is empty for shared ones.
  std::map<std::pair<int, std::string>, Part> parts_;
};

}  // namespace causeway::server
