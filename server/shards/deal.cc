#include "server/shards/deal.h"

#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/params/run_config.h"
#include "nlohmann/json.hpp"
#include "server/store/run_directory.h"

namespace causeway::server {
namespace {

// Less is better: neighbours on one shard, then the largest share, then the sum of the squares.
struct Cost {
  int neighbours = 0;
  int64_t largest = 0;
  double squares = 0;

  friend auto operator<=>(const Cost&, const Cost&) = default;
};

Cost CostOf(const std::vector<int64_t>& sizes, const std::vector<int>& owner, int shards) {
  Cost cost;
  std::vector<int64_t> load(static_cast<size_t>(shards));
  for (size_t i = 0; i < sizes.size(); ++i) {
    load[static_cast<size_t>(owner[i])] += sizes[i];
    if (sizes.size() > 1 && owner[i] == owner[(i + 1) % sizes.size()]) ++cost.neighbours;
  }
  for (const int64_t share : load) {
    cost.largest = std::max(cost.largest, share);
    cost.squares += static_cast<double>(share) * static_cast<double>(share);
  }
  return cost;
}

// Takes the first change that makes the deal better. False: there is none.
bool Improve(const std::vector<int64_t>& sizes, std::vector<int>& owner, int shards, Cost& cost) {
  const auto better = [&] {
    const Cost changed = CostOf(sizes, owner, shards);
    if (!(changed < cost)) return false;
    cost = changed;
    return true;
  };
  for (size_t i = 0; i < owner.size(); ++i) {
    for (size_t k = i + 1; k < owner.size(); ++k) {
      std::swap(owner[i], owner[k]);
      if (better()) return true;
      std::swap(owner[i], owner[k]);
    }
    const int before = owner[i];
    // Each shard keeps one fragment at least.
    if (std::ranges::count(owner, before) == 1) continue;
    for (owner[i] = 0; owner[i] < shards; ++owner[i]) {
      if (better()) return true;
    }
    owner[i] = before;
  }
  return false;
}

std::vector<int> InTurns(size_t fragments, int shards) {
  std::vector<int> owner(fragments);
  for (size_t i = 0; i < fragments; ++i) owner[i] = static_cast<int>(i) % shards;
  return owner;
}

// The largest first, each to the shard with the least so far that has no neighbour of it.
std::vector<int> LargestFirst(const std::vector<int64_t>& sizes, int shards) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(), [&](size_t i) { return sizes[i]; });
  std::vector<int> owner(sizes.size(), -1);
  std::vector<int64_t> load(static_cast<size_t>(shards));
  for (const size_t i : order) {
    const int before = owner[(i + sizes.size() - 1) % sizes.size()];
    const int after = owner[(i + 1) % sizes.size()];
    const auto rank = [&](int shard) {
      return std::pair(shard == before || shard == after, load[static_cast<size_t>(shard)]);
    };
    owner[i] = 0;
    for (int shard = 1; shard < shards; ++shard) {
      if (rank(shard) < rank(owner[i])) owner[i] = shard;
    }
    load[static_cast<size_t>(owner[i])] += sizes[i];
  }
  return owner;
}

}  // namespace

std::vector<std::vector<int>> DealFragments(const std::vector<int64_t>& sizes, int shards) {
  std::vector<int> owner;
  Cost least;
  for (std::vector<int> from : {InTurns(sizes.size(), shards), LargestFirst(sizes, shards)}) {
    Cost cost = CostOf(sizes, from, shards);
    while (Improve(sizes, from, shards, cost)) {
    }
    if (!owner.empty() && !(cost < least)) continue;
    owner = std::move(from);
    least = cost;
  }
  std::vector<std::vector<int>> dealt(static_cast<size_t>(shards));
  for (size_t i = 0; i < owner.size(); ++i) {
    dealt[static_cast<size_t>(owner[i])].push_back(static_cast<int>(i));
  }
  return dealt;
}

absl::StatusOr<std::vector<std::string>> ParseShardNames(const std::string& list) {
  const std::vector<std::string> names = absl::StrSplit(list, ',');
  std::set<std::string> seen;
  for (const std::string& name : names) {
    RETURN_IF_ERROR(CheckName("a name in --shards", name));
    if (seen.insert(name).second) continue;
    return absl::InvalidArgumentError(absl::StrCat("--shards=", list, " has ", name,
                                                   " twice: every shard has a name of its own"));
  }
  if (names.size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("--shards=", list, " is one shard: name two or more (\"", kLeadName,
                     "\" is this coordinator), or leave --shards out"));
  }
  return names;
}

absl::StatusOr<std::optional<std::vector<DealtShard>>> ReadDeal(FileSystem& file_system,
                                                                const std::string& folder) {
  const std::string path = JoinPath(folder, kDealFile);
  if (!file_system.Exists(path)) return std::optional<std::vector<DealtShard>>();
  ASSIGN_OR_RETURN(const std::string text, file_system.ReadFile(path));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const absl::Status damaged = absl::DataLossError(
      absl::StrCat(path, " is not what a lead writes: restore it from a backup of the folder"));
  if (!json.is_object() || !json.contains("shards") || !json["shards"].is_array()) return damaged;
  std::vector<DealtShard> deal;
  for (const nlohmann::json& entry : json["shards"]) {
    if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string() ||
        !entry.contains("fragments") || !entry["fragments"].is_array() ||
        !entry.contains("begun") || !entry["begun"].is_boolean() || !entry.contains("ended") ||
        !entry["ended"].is_boolean()) {
      return damaged;
    }
    DealtShard& shard = deal.emplace_back();
    shard.name = entry["name"].get<std::string>();
    shard.begun = entry["begun"].get<bool>();
    shard.ended = entry["ended"].get<bool>();
    for (const nlohmann::json& fragment : entry["fragments"]) {
      if (!fragment.is_number_integer()) return damaged;
      shard.fragments.push_back(fragment.get<int>());
    }
  }
  return std::optional(std::move(deal));
}

absl::Status WriteDeal(FileSystem& file_system, const std::string& folder,
                       const std::vector<DealtShard>& deal) {
  nlohmann::json shards = nlohmann::json::array();
  for (const DealtShard& shard : deal) {
    shards.push_back({{"name", shard.name},
                      {"fragments", shard.fragments},
                      {"begun", shard.begun},
                      {"ended", shard.ended}});
  }
  const std::string text = nlohmann::json{{"shards", shards}}.dump(2) + "\n";
  return WriteFileAtomically(file_system, JoinPath(folder, kDealFile), absl::string_view(text));
}

}  // namespace causeway::server
