// The paper's compute-utilization simulator, as far as its text and tables allow to reconstruct it
// (arXiv 2501.18512, section 4.2 and table 6); docs/reports/simulator_checks.md has the
// recipe in prose.
//
// One serial compute resource and one serial first-in first-out link. Every layer has a forward
// node, an activation-gradient node and a parameter-gradient node of step / (3 layers) each. A
// layer's parameter gradient starts when its activation gradient is there, and queues behind the
// next layer's activation gradient. The reduction of a layer that is due is sent right after its
// parameter gradient and takes params / layers * bits / bandwidth: no latency, no ring factor, one
// direction. The forward node of that layer in the next step (with overlap: tau steps later) waits
// for it. The link is drained at the end.
//
// Pure functions of their arguments.
#ifndef CAUSEWAY_SERVER_PLANNER_PAPER_MODEL_H_
#define CAUSEWAY_SERVER_PLANNER_PAPER_MODEL_H_

#include <string>
#include <vector>

namespace causeway::server {

enum class PaperMethod {
  kDataParallel,  // All layers after every step.
  kDiLoCo,        // All layers after every H-th step.
  kStreaming,     // Strided fragments; fragment k of P after steps t with t mod H = floor(k H / P).
};

struct PaperSetting {
  double params = 0;
  int layers = 1;
  double step_seconds = 0;
  double bits = 16;  // Per parameter.
  PaperMethod method = PaperMethod::kStreaming;
  int steps_between_syncs = 100;
  int layers_per_fragment = 3;  // Divides layers.
  int overlap_steps = 0;
};

// Compute time over all time: of 20 steps with kDataParallel, 2 H with kDiLoCo, and 2 H + 1, the
// first one being step 0, with kStreaming.
double PaperUtilization(const PaperSetting& setting, double gbit_per_s);

// The bandwidths that the paper tried: 50 of them, 10^(-1 + 4 k / 49) Gbit/s.
std::vector<double> PaperBandwidths();

// As the paper prints a bandwidth: to two digits after the point and then to one, both by the
// nearest double, which turns 1.151 into 1.1 and 2.947 into 3.0.
std::string PaperPrinted(double gbit_per_s);

// The index of the largest bandwidth of the grid at which the utilization is still below `target`,
// which is what the paper prints; 0 if it is below nowhere.
int PaperGridPoint(const std::vector<double>& utilizations, double target);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_PLANNER_PAPER_MODEL_H_
