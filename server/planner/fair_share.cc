#include "server/planner/fair_share.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace causeway::server {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// The rest of an end or a port, and the number of flows without a rate that share it.
struct Rest {
  double capacity = 0;
  int sharing = 0;

  double share() const { return sharing > 0 ? capacity / sharing : kInfinite; }
  void Give(double rate, int count) {
    if (!std::isinf(capacity)) capacity = std::max(0.0, capacity - rate * count);
    sharing -= count;
  }
};

}  // namespace

std::vector<double> FairRates(std::span<const Flow> flows, std::span<const End> ends,
                              std::span<const double> port_capacities) {
  std::vector<Rest> end_rests;
  for (const End& end : ends) end_rests.push_back({.capacity = end.limit});
  std::vector<Rest> port_rests;
  for (const double capacity : port_capacities) port_rests.push_back({.capacity = capacity});
  for (const Flow& flow : flows) {
    ++end_rests[static_cast<size_t>(flow.end)].sharing;
    port_rests[static_cast<size_t>(flow.port)].sharing += ends[static_cast<size_t>(flow.end)].count;
  }
  std::vector<double> rates(flows.size(), -1);
  for (size_t done = 0; done < flows.size();) {
    size_t tightest = 0;
    for (size_t port = 1; port < port_rests.size(); ++port) {
      if (port_rests[port].share() < port_rests[tightest].share()) tightest = port;
    }
    const double port_share = port_rests[tightest].share();
    // Shares of ends that bind before any port does: settling them can only raise the shares of
    // ports.
    std::vector<double> end_shares;
    for (const Rest& rest : end_rests) end_shares.push_back(rest.share());
    const size_t before = done;
    const auto settle = [&](size_t i, double rate) {
      rates[i] = rate;
      ++done;
      const auto end = static_cast<size_t>(flows[i].end);
      end_rests[end].Give(rate, 1);
      port_rests[static_cast<size_t>(flows[i].port)].Give(rate, ends[end].count);
    };
    for (size_t i = 0; i < flows.size(); ++i) {
      const double share = end_shares[static_cast<size_t>(flows[i].end)];
      if (rates[i] < 0 && share <= port_share) settle(i, share);
    }
    if (done > before) continue;
    for (size_t i = 0; i < flows.size(); ++i) {
      if (rates[i] < 0 && static_cast<size_t>(flows[i].port) == tightest) settle(i, port_share);
    }
  }
  return rates;
}

}  // namespace causeway::server
