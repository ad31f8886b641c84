#include "server/planner/paper_tables.h"

#include <cstdlib>

namespace causeway::server {
namespace {

struct Method {
  const char* name;
  PaperMethod method;
  double bits;
  int overlap_steps;
};
constexpr std::array<Method, 5> kMethods = {
    Method{"data_parallel", PaperMethod::kDataParallel, 16, 0},
    Method{"diloco", PaperMethod::kDiLoCo, 16, 0},
    Method{"streaming", PaperMethod::kStreaming, 16, 0},
    Method{"streaming_overlap", PaperMethod::kStreaming, 16, 1},
    Method{"streaming_overlap_fp4", PaperMethod::kStreaming, 4, 1},
};

using Cells = std::array<const char*, kPaperTargets.size()>;
// By model, then by method, in the orders above.
constexpr std::array<std::array<Cells, kMethods.size()>, kPaperModels.size()> kPrinted = {{
    {{{"86.8", "152.6", "184.2", "222.3", "569.0"},
      {"1.4", "6.2", "13.3", "23.3", "86.8"},
      {"1.4", "5.2", "9.1", "16.0", "28.1"},
      {"1.4", "4.3", "6.2", "9.1", "11.0"},
      {"0.4", "0.9", "1.7", "2.0", "3.0"}}},
    {{{"104.8", "222.3", "222.3", "268.3", "471.5"},
      {"1.7", "7.5", "16.0", "33.9", "104.8"},
      {"1.7", "5.2", "9.1", "13.3", "19.3"},
      {"1.7", "3.6", "5.2", "6.2", "7.5"},
      {"0.4", "0.9", "1.4", "1.4", "1.7"}}},
    {{{"184.2", "323.8", "390.7", "390.7", "471.5"},
      {"3.0", "11.0", "23.3", "49.4", "184.2"},
      {"2.4", "6.2", "9.1", "11.0", "19.3"},
      {"1.7", "3.6", "4.3", "5.2", "5.2"},
      {"0.5", "0.9", "1.1", "1.1", "1.4"}}},
}};

struct Hours {
  const char* method;
  double tokens_billions;
  double unlimited;
  double at_1_gbit;
};
constexpr std::array<Hours, 6> kHours = {
    Hours{"data_parallel", 25, 0.67, 109},         Hours{"data_parallel", 100, 2.7, 438},
    Hours{"data_parallel", 250, 6.75, 1097},       Hours{"streaming_overlap_fp4", 25, 0.67, 0.88},
    Hours{"streaming_overlap_fp4", 100, 2.7, 3.5}, Hours{"streaming_overlap_fp4", 250, 6.75, 8.75},
};

PaperSetting SettingOf(const PaperModelSize& model, const Method& method) {
  return {.params = model.params,
          .layers = model.layers,
          .step_seconds = model.step_seconds,
          .bits = method.bits,
          .method = method.method,
          .overlap_steps = method.overlap_steps};
}

// Returns the point nearest to `ours` of those that print as `printed`.
int NearestPrinted(const std::vector<double>& grid, const std::string& printed, int ours) {
  int nearest = -1;
  for (int k = 0; k < static_cast<int>(grid.size()); ++k) {
    if (PaperPrinted(grid[static_cast<size_t>(k)]) != printed) continue;
    if (nearest < 0 || std::abs(k - ours) < std::abs(nearest - ours)) nearest = k;
  }
  return nearest;
}

}  // namespace

PaperComparison ComparePaperBandwidths() {
  const std::vector<double> grid = PaperBandwidths();
  PaperComparison comparison;
  for (size_t m = 0; m < kPaperModels.size(); ++m) {
    for (size_t i = 0; i < kMethods.size(); ++i) {
      const PaperSetting setting = SettingOf(kPaperModels[m], kMethods[i]);
      std::vector<double> utilizations;
      for (const double bandwidth : grid) {
        utilizations.push_back(PaperUtilization(setting, bandwidth));
      }
      PaperRow row = {.model = kPaperModels[m].name, .method = kMethods[i].name};
      for (size_t j = 0; j < kPaperTargets.size(); ++j) {
        const int point = PaperGridPoint(utilizations, kPaperTargets[j]);
        row.paper[j] = kPrinted[m][i][j];
        row.ours[j] = grid[static_cast<size_t>(point)];
        row.grid_steps[j] = point - NearestPrinted(grid, row.paper[j], point);
        ++comparison.cells;
        comparison.cells_exact += row.grid_steps[j] == 0 ? 1 : 0;
        comparison.cells_within_one += std::abs(row.grid_steps[j]) <= 1 ? 1 : 0;
      }
      comparison.rows.push_back(row);
    }
  }
  return comparison;
}

std::vector<PaperHours> ComparePaperHours() {
  std::vector<PaperHours> comparison;
  for (const Hours& hours : kHours) {
    for (const Method& method : kMethods) {
      if (std::string(method.name) != hours.method) continue;
      const double utilization = PaperUtilization(SettingOf(kPaperModels[0], method), 1);
      comparison.push_back({hours.method, hours.tokens_billions, hours.unlimited, hours.at_1_gbit,
                            hours.unlimited / utilization});
    }
  }
  return comparison;
}

}  // namespace causeway::server
