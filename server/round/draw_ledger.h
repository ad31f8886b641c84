// How far each part of a run's data has been drawn, by what was contributed.
//
// Pure bookkeeping: no lock, no I/O; the caller serializes the calls. What a worker trained without
// contributing it is not in the ledger: whoever takes its part over trains it again.
#ifndef CAUSEWAY_SERVER_ROUND_DRAW_LEDGER_H_
#define CAUSEWAY_SERVER_ROUND_DRAW_LEDGER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "common/params/draws.h"

namespace causeway::server {

// Not thread-safe.
class DrawLedger {
 public:
  // Of an accepted contribution.
  void Add(const std::string& worker_id, const Draws& draws);

  // Beyond every draw of that part (kOwnData: of that worker's own data) that any accepted
  // contribution to any fragment was trained on. 0 if there was none.
  int64_t NextDraw(int slot, const std::string& worker_id) const;

 private:
  // Of shared parts the worker id is empty.
  std::map<std::pair<int, std::string>, int64_t> next_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_ROUND_DRAW_LEDGER_H_
