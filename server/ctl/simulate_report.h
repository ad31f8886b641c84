// The findings of `causewayctl simulate` and `plan`, as text for people and JSON for programs.
#ifndef CAUSEWAY_SERVER_CTL_SIMULATE_REPORT_H_
#define CAUSEWAY_SERVER_CTL_SIMULATE_REPORT_H_

#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "server/planner/need.h"
#include "server/planner/paper_tables.h"
#include "server/planner/planner.h"
#include "server/planner/slack.h"
#include "server/planner/star_model.h"

namespace causeway::server {

// The paper's tables beside ours, and our own schedule for the same models.
std::string PaperText(const PaperComparison& bandwidths, const std::vector<PaperHours>& hours,
                      const std::vector<OwnRow>& own);
nlohmann::json PaperJson(const PaperComparison& bandwidths, const std::vector<PaperHours>& hours,
                         const std::vector<OwnRow>& own);

// One simulated run; `slack` where something is amiss or the overlap gives way.
std::string StarText(const StarSetting& setting, const StarResult& result,
                     const std::optional<SlackStudy>& slack);
nlohmann::json StarJson(const StarSetting& setting, const StarResult& result,
                        const std::optional<SlackStudy>& slack);

// Utilization at several rates of the sites' links.
struct SweepPoint {
  double bit_per_s = 0;
  StarResult result = {};
};
std::string SweepText(const std::vector<SweepPoint>& points);
nlohmann::json SweepJson(const std::vector<SweepPoint>& points);

// Asks what a training of so many days moves, and what that costs at a price per 10^12 bytes sent.
struct CostRequest {
  double days = 0;  // 0: nobody asks.
  double egress_per_tb = 0;
};

// The schedule of a configuration as it stands, and what it would make of the plan's links.
struct ConfiguredRun {
  StarSetting schedule = {};
  StarResult expected = {};
};
std::string PlanText(const PlanRequest& request, const Plan& plan,
                     const std::optional<ConfiguredRun>& configured, const CostRequest& cost);
nlohmann::json PlanJson(const PlanRequest& request, const Plan& plan,
                        const std::optional<ConfiguredRun>& configured, const CostRequest& cost);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CTL_SIMULATE_REPORT_H_
