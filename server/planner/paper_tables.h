// The paper's figures about bandwidth (arXiv 2501.18512v1, tables 6 and 3), beside those that its
// simulator gives here (paper_model.h).
#ifndef CAUSEWAY_SERVER_PLANNER_PAPER_TABLES_H_
#define CAUSEWAY_SERVER_PLANNER_PAPER_TABLES_H_

#include <array>
#include <string>
#include <vector>

#include "server/planner/paper_model.h"

namespace causeway::server {

inline constexpr std::array<double, 5> kPaperTargets = {0.50, 0.80, 0.90, 0.95, 0.99};

struct PaperModelSize {
  const char* name;  // "1B"
  double params;
  int layers;
  double step_seconds;
};
inline constexpr std::array<PaperModelSize, 3> kPaperModels = {
    PaperModelSize{"1B", 1e9, 24, 0.1},
    PaperModelSize{"10B", 10e9, 48, 0.8},
    PaperModelSize{"100B", 100e9, 108, 4.9},
};

// One line of the table: the bandwidth in Gbit/s that a method needs for each target.
struct PaperRow {
  std::string model;
  std::string method;                                        // "streaming_overlap_fp4"
  std::array<std::string, kPaperTargets.size()> paper = {};  // As printed.
  std::array<double, kPaperTargets.size()> ours = {};        // Points of the grid.
  // How many points of the grid ours lies above the paper's. A printed value that two points share
  // is taken for the nearer of them.
  std::array<int, kPaperTargets.size()> grid_steps = {};
};

struct PaperComparison {
  std::vector<PaperRow> rows;
  int cells = 0;
  int cells_exact = 0;
  int cells_within_one = 0;
};
PaperComparison ComparePaperBandwidths();

// The 1B model at 1 Gbit/s and without a limit, H = 100.
struct PaperHours {
  std::string method;
  double tokens_billions;
  double unlimited_hours;  // As the paper says.
  double paper_hours;      // At 1 Gbit/s.
  double our_hours;        // unlimited_hours over our utilization at 1 Gbit/s.
};
std::vector<PaperHours> ComparePaperHours();

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_PLANNER_PAPER_TABLES_H_
