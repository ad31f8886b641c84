// How links are shared by those who send over them at once.
#ifndef CAUSEWAY_SERVER_PLANNER_FAIR_SHARE_H_
#define CAUSEWAY_SERVER_PLANNER_FAIR_SHARE_H_

#include <span>
#include <vector>

namespace causeway::server {

// A flow between one end, such as a worker's link, and one port, such as a coordinator's.
struct Flow {
  int end = 0;
  int port = 0;
};

struct End {
  double limit = 0;  // Bits per second of all its flows together.
  int count = 1;     // It stands for so many ends that do the same.
};

// Max-min fair rates of the flows (of each of `count`): no end or port carries more than it can,
// and nobody could have more without taking from one that has less. Limits may be infinite.
std::vector<double> FairRates(std::span<const Flow> flows, std::span<const End> ends,
                              std::span<const double> port_capacities);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_PLANNER_FAIR_SHARE_H_
