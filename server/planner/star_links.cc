#include "server/planner/star_links.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace causeway::server {

StarLinks::StarLinks(std::vector<End> up, std::vector<End> down, double coordinator_in,
                     double coordinator_out, Schedule schedule)
    : schedule_(std::move(schedule)) {
  Of(Way::kUp).ends = std::move(up);
  Of(Way::kDown).ends = std::move(down);
  for (const Way way : {Way::kUp, Way::kDown}) {
    Direction& direction = Of(way);
    direction.capacity = way == Way::kUp ? coordinator_in : coordinator_out;
    double all = 0;
    for (const causeway::server::End& end : direction.ends) all += end.limit * end.count;
    direction.ample = std::isinf(direction.capacity) || all <= direction.capacity;
    direction.queues.resize(direction.ends.size());
    direction.worker_bits.resize(direction.ends.size());
  }
}

void StarLinks::Settle(double now, Way way, size_t index) {
  Direction& direction = Of(way);
  Queue& queue = direction.queues[index];
  double bits = 0;
  if (std::isinf(queue.rate)) {
    bits = queue.left;
  } else if (now > queue.since) {
    bits = std::min(queue.left, queue.rate * (now - queue.since));
  }
  queue.left -= bits;
  queue.since = now;
  if (!counting_) return;
  direction.worker_bits[index] += bits;
  direction.coordinator_bits += bits * direction.ends[index].count;
}

void StarLinks::SetRate(double now, Way way, size_t index, double rate) {
  Settle(now, way, index);
  Queue& queue = Of(way).queues[index];
  queue.rate = rate;
  ++queue.version;
  if (rate == 0) return;  // The end that was scheduled is void.
  schedule_(now + (std::isinf(rate) ? 0.0 : queue.left / rate),
            {.worker = static_cast<int>(index), .way = way, .version = queue.version});
}

void StarLinks::Begin(double now, Way way, size_t index) {
  Direction& direction = Of(way);
  Queue& queue = direction.queues[index];
  if (queue.transfers.empty()) return;
  queue.left = queue.transfers.front().bits;
  queue.rate = 0;
  queue.since = now;
  direction.active.insert(index);
  if (direction.ample) {
    SetRate(now, way, index, direction.ends[index].limit);
  } else {
    direction.changed = true;
  }
}

void StarLinks::Close(double now, Way way, size_t index) {
  Direction& direction = Of(way);
  Settle(now, way, index);
  ++direction.queues[index].version;
  direction.active.erase(index);
  direction.changed = !direction.ample;
}

void StarLinks::Add(double now, int worker, Way way, const Transfer& transfer) {
  const auto index = static_cast<size_t>(worker);
  Queue& queue = Of(way).queues[index];
  queue.transfers.push_back(transfer);
  if (queue.transfers.size() == 1) Begin(now, way, index);
}

bool StarLinks::Finish(double now, const Ticket& ticket, Transfer& done) {
  const auto index = static_cast<size_t>(ticket.worker);
  Queue& queue = Of(ticket.way).queues[index];
  if (queue.version != ticket.version || queue.transfers.empty()) return false;
  done = queue.transfers.front();
  Close(now, ticket.way, index);
  queue.transfers.pop_front();
  Begin(now, ticket.way, index);
  return true;
}

void StarLinks::Drop(double now, int worker, Way way, int fragment, int64_t round) {
  const auto index = static_cast<size_t>(worker);
  Queue& queue = Of(way).queues[index];
  const auto is_it = [&](const Transfer& transfer) {
    return transfer.fragment == fragment && transfer.round == round;
  };
  const bool first = !queue.transfers.empty() && is_it(queue.transfers.front());
  if (first) Close(now, way, index);
  std::erase_if(queue.transfers, is_it);
  if (first) Begin(now, way, index);
}

void StarLinks::DropAll(double now, int worker) {
  for (const Way way : {Way::kUp, Way::kDown}) {
    const auto index = static_cast<size_t>(worker);
    if (Of(way).queues[index].transfers.empty()) continue;
    Close(now, way, index);
    Of(way).queues[index].transfers.clear();
  }
}

void StarLinks::SetLimit(double now, int worker, Way way, double bit_per_s) {
  Direction& direction = Of(way);
  direction.ends[static_cast<size_t>(worker)].limit = bit_per_s;
  if (!direction.ample) {
    direction.changed = true;
    return;
  }
  const auto index = static_cast<size_t>(worker);
  if (direction.active.contains(index)) SetRate(now, way, index, bit_per_s);
}

void StarLinks::Share(double now) {
  for (const Way way : {Way::kUp, Way::kDown}) {
    Direction& direction = Of(way);
    if (!direction.changed) continue;
    direction.changed = false;
    std::vector<Flow> flows;
    for (const size_t index : direction.active) {
      flows.push_back({static_cast<int>(index), 0});
    }
    const std::vector<double> rates = FairRates(flows, direction.ends, {&direction.capacity, 1});
    size_t i = 0;
    for (const size_t index : direction.active) {
      if (rates[i] != direction.queues[index].rate) SetRate(now, way, index, rates[i]);
      ++i;
    }
  }
}

void StarLinks::SettleAll(double now, Way way) {
  for (const size_t index : Of(way).active) Settle(now, way, index);
}

void StarLinks::StartCounting(double now) {
  for (const Way way : {Way::kUp, Way::kDown}) SettleAll(now, way);
  counting_ = true;
}

double StarLinks::WorkerBits(double now, int worker, Way way) {
  SettleAll(now, way);
  return Of(way).worker_bits[static_cast<size_t>(worker)];
}

double StarLinks::CoordinatorBits(double now, Way way) {
  SettleAll(now, way);
  return Of(way).coordinator_bits;
}

}  // namespace causeway::server
