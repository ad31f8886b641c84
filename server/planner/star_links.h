// The links of a simulated star: a worker's link each way, and one each way of every shard of the
// coordinator. To each shard a worker has a queue, first in, first out; the queues that are not
// empty share the links fairly. Bits flow at constant rates between events.
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
    int shard = 0;
    Way way = Way::kUp;
    uint64_t version = 0;
  };
  // Call Finish with the ticket at that time.
  using Schedule = std::function<void(double time, const Ticket& ticket)>;

  // Bits per second; may be infinite.
  StarLinks(std::vector<End> up, std::vector<End> down, int shards, double shard_in,
            double shard_out, Schedule schedule);

  void Add(double now, int worker, int shard, Way way, const Transfer& transfer);
  // True, with the transfer that is over, unless something has changed since it was scheduled.
  bool Finish(double now, const Ticket& ticket, Transfer& done);
  // Drops the worker's transfers of one round of a fragment; all of them.
  void Drop(double now, int worker, int shard, Way way, int fragment, int64_t round);
  void DropAll(double now, int worker);
  // Gives rates to what has begun since the last call. To be called before time goes on.
  void Share(double now);

  // Gives the worker's link another limit, at most the one it began with. 0: nothing moves.
  void SetLimit(double now, int worker, Way way, double bit_per_s);

  // Bits are counted from now on.
  void StartCounting(double now);
  // Bits per second of each of the workers that this one stands for; of a shard.
  double WorkerBits(double now, int worker, Way way);
  double ShardBits(double now, int shard, Way way);

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
    std::vector<double> capacities;  // By shard.
    bool ample = false;              // One shard that can take whatever the ends bring at most.
    std::vector<Queue> queues;       // By worker, then by shard.
    std::set<size_t> active;         // Queues that are not empty.
    bool changed = false;
    std::vector<double> worker_bits;
    std::vector<double> shard_bits;
  };

  Direction& Of(Way way) { return directions_[static_cast<size_t>(way)]; }
  size_t QueueIndex(int worker, int shard) const {
    return static_cast<size_t>(worker) * shards_ + static_cast<size_t>(shard);
  }
  void Begin(double now, Way way, size_t queue);
  void Close(double now, Way way, size_t queue);
  void Settle(double now, Way way, size_t queue);
  void SetRate(double now, Way way, size_t queue, double rate);
  void SettleAll(double now, Way way);

  const size_t shards_;
  std::array<Direction, 2> directions_;
  Schedule schedule_;
  bool counting_ = false;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_PLANNER_STAR_LINKS_H_
