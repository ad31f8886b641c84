#include "server/planner/paper_model.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "absl/strings/str_format.h"

namespace causeway::server {
namespace {

constexpr int kGridPoints = 50;
constexpr int kDataParallelSteps = 20;

int SimulatedSteps(const PaperSetting& setting) {
  switch (setting.method) {
    case PaperMethod::kDataParallel:
      return kDataParallelSteps;
    case PaperMethod::kDiLoCo:
      return 2 * setting.steps_between_syncs;
    case PaperMethod::kStreaming:
      return 2 * setting.steps_between_syncs + 1;
  }
  return 0;
}

bool IsDue(const PaperSetting& setting, int step, int layer) {
  const int period = setting.steps_between_syncs;
  switch (setting.method) {
    case PaperMethod::kDataParallel:
      return true;
    case PaperMethod::kDiLoCo:
      return step % period == period - 1;
    case PaperMethod::kStreaming: {
      const int fragments = setting.layers / setting.layers_per_fragment;
      return step % period == layer % fragments * period / fragments;
    }
  }
  return false;
}

}  // namespace

double PaperUtilization(const PaperSetting& setting, double gbit_per_s) {
  const int layers = setting.layers;
  const int steps = SimulatedSteps(setting);
  const double node = setting.step_seconds / (3.0 * layers);
  const double reduction = setting.params / layers * setting.bits / (gbit_per_s * 1e9);
  // When layer l may begin its forward node of step t: element t * layers + l.
  std::vector<double> ready(
      static_cast<size_t>(steps + setting.overlap_steps + 1) * static_cast<size_t>(layers), 0.0);
  const auto element = [layers](int step, int layer) {
    return static_cast<size_t>(step) * static_cast<size_t>(layers) + static_cast<size_t>(layer);
  };
  double now = 0;
  double link_free = 0;
  for (int step = 0; step < steps; ++step) {
    for (int layer = 0; layer < layers; ++layer) {
      now = std::max(now, ready[element(step, layer)]) + node;
    }
    const auto parameter_gradient = [&](int layer) {
      now += node;
      if (!IsDue(setting, step, layer)) return;
      link_free = std::max(link_free, now) + reduction;
      ready[element(step + 1 + setting.overlap_steps, layer)] = link_free;
    };
    for (int layer = layers - 1; layer >= 0; --layer) {
      now += node;  // The activation gradient.
      if (layer + 1 < layers) parameter_gradient(layer + 1);
    }
    parameter_gradient(0);
  }
  return steps * setting.step_seconds / std::max(now, link_free);
}

std::vector<double> PaperBandwidths() {
  std::vector<double> bandwidths;
  for (int k = 0; k < kGridPoints; ++k) {
    bandwidths.push_back(std::pow(10.0, -1.0 + 4.0 * k / (kGridPoints - 1)));
  }
  return bandwidths;
}

std::string PaperPrinted(double gbit_per_s) {
  const std::string two_digits = absl::StrFormat("%.2f", gbit_per_s);
  return absl::StrFormat("%.1f", std::strtod(two_digits.c_str(), nullptr));
}

int PaperGridPoint(const std::vector<double>& utilizations, double target) {
  int point = 0;
  for (size_t k = 0; k < utilizations.size(); ++k) {
    if (utilizations[k] < target) point = static_cast<int>(k);
  }
  return point;
}

}  // namespace causeway::server
