#include "server/store/draw_report.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "common/params/draws.h"

namespace causeway::server {
namespace {

using nlohmann::json;

struct Part {
  std::map<int, Draws> by_fragment;
  std::map<std::string, Draws> by_worker;
};

// Sorted and joined. Returns how many draws were there more than once.
int64_t Join(Draws& draws) {
  std::sort(draws.begin(), draws.end(),
            [](const DrawRange& a, const DrawRange& b) { return a.begin < b.begin; });
  int64_t repeated = 0;
  Draws joined;
  for (const DrawRange& range : draws) {
    if (joined.empty() || range.begin > joined.back().end) {
      joined.push_back(range);
      continue;
    }
    int64_t& end = joined.back().end;
    repeated += std::max<int64_t>(0, std::min(end, range.end) - range.begin);
    end = std::max(end, range.end);
  }
  draws = std::move(joined);
  return repeated;
}

int64_t Count(const Draws& draws) {
  int64_t count = 0;
  for (const DrawRange& range : draws) count += range.end - range.begin;
  return count;
}

}  // namespace

json ReportDraws(const std::vector<v1::Contribution>& contributions) {
  std::map<std::pair<int, std::string>, Part> parts;
  for (const v1::Contribution& contribution : contributions) {
    const v1::PushHeader& header = contribution.header();
    for (const DrawRange& range : DrawsOf(header.draws())) {
      Part& part = parts[{range.slot, range.slot == kOwnData ? header.worker_id() : std::string()}];
      part.by_fragment[header.fragment()].push_back(range);
      part.by_worker[header.worker_id()].push_back(range);
    }
  }
  json report = json::array();
  for (auto& [key, part] : parts) {
    json entry = {{"data_slot", key.first},
                  {"worker_id", key.second.empty() ? json() : json(key.second)},
                  {"trained_by", json::array()}};
    int64_t repeated = 0;
    for (auto& [fragment, draws] : part.by_fragment) repeated = std::max(repeated, Join(draws));
    Draws all;
    for (auto& [worker_id, draws] : part.by_worker) {
      all.insert(all.end(), draws.begin(), draws.end());
      Join(draws);
      entry["trained_by"].push_back(
          {{"worker_id", worker_id}, {"draws", FormatDraws(draws)}, {"count", Count(draws)}});
    }
    Join(all);
    entry["next_draw"] = all.back().end;
    entry["skipped"] = all.back().end - Count(all);
    entry["repeated"] = repeated;
    report.push_back(std::move(entry));
  }
  return report;
}

}  // namespace causeway::server
