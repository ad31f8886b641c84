// The links of a simulated star: a worker's link each way, and the coordinator's. A worker has a
// queue each way, first in, first out; the queues that are not empty share the coordinator's link
// fairly. Bits flow at constant rates between events.
#ifndef CAUSEWAY_SERVER_PLANNER_STAR_LINKS_H_
#define CAUSEWAY_SERVER_PLANNER_STAR_LINKS_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <vector>

#include "server/planner/fair_share.h"

namespace causeway::server {

enum class Way { kUp = 0, kDown = 1 };

// One piece of an object on a worker's link.
struct Transfer {
  int fragment = 0;
  int64_t round = 0;  // 0: of the published state, for a worker that starts anew.
  double bits = 0;
};

class StarLinks {
 public:
  // Names one queue and what was known when its first transfer's end was scheduled.
  struct Ticket {
    int worker = 0;
    Way way = Way::kUp;
    uint64_t version = 0;
  };
  // Call Finish with the ticket at that time.
  using Schedule = std::function<void(double time, const Ticket& ticket)>;

  // Bits per second; may be infinite.
  StarLinks(std::vector<End> up, std::vector<End> down, double coordinator_in,
            double coordinator_out, Schedule schedule);

  void Add(double now, int worker, Way way, const Transfer& transfer);
  // True, with the transfer that is over, unless something has changed since it was scheduled.
  bool Finish(double now, const Ticket& ticket, Transfer& done);
  // Drops the worker's transfers of one round of a fragment; all of them.
  void Drop(double now, int worker, Way way, int fragment, int64_t round);
  void DropAll(double now, int worker);
  // Gives rates to what has begun since the last call. To be called before time goes on.
  void Share(double now);

  // Gives the worker's link another limit, at most the one it began with. 0: nothing moves.
  void SetLimit(double now, int worker, Way way, double bit_per_s);

  // Bits are counted from now on.
  void StartCounting(double now);
  // Bits of each of the workers that this one stands for; of the coordinator.
  double WorkerBits(double now, int worker, Way way);
  double CoordinatorBits(double now, Way way);

 private:
  struct Queue {
    std::deque<Transfer> transfers;  // The first one is on its way.
    double left = 0;                 // Bits of the first.
    double rate = 0;
    double since = 0;  // When `left` was true.
    uint64_t version = 0;
  };
  // Everything of one direction.
  struct Direction {
    std::vector<End> ends;
    double capacity = 0;        // Of the coordinator's link.
    bool ample = false;         // It can take whatever the ends bring at most.
    std::vector<Queue> queues;  // By worker.
    std::set<size_t> active;    // Queues that are not empty.
    bool changed = false;
    std::vector<double> worker_bits;
    double coordinator_bits = 0;
  };

  Direction& Of(Way way) { return directions_[static_cast<size_t>(way)]; }
  void Begin(double now, Way way, size_t queue);
  void Close(double now, Way way, size_t queue);
  void Settle(double now, Way way, size_t queue);
  void SetRate(double now, Way way, size_t queue, double rate);
  void SettleAll(double now, Way way);

  std::array<Direction, 2> directions_;
  Schedule schedule_;
  bool counting_ = false;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_PLANNER_STAR_LINKS_H_
