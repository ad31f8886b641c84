#include "worker/backend/cuda/gemm.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace causeway::worker::cuda {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;

}  // namespace

std::optional<GemmPlan> GemmPlanStore::Find(const std::string& key) const {
  absl::MutexLock lock(&mutex_);
  const auto plan = plans_.find(key);
  if (plan == plans_.end()) return std::nullopt;
  return plan->second;
}

GemmPlan GemmPlanStore::Keep(const std::string& key, const GemmPlan& plan,
                             const std::optional<GemmPlan>& unusable) {
  absl::MutexLock lock(&mutex_);
  auto [kept, added] = plans_.emplace(key, plan);
  if (!added && kept->second == unusable) {
    kept->second = plan;
    added = true;
  }
  changed_ = changed_ || added;
  return kept->second;
}

std::string GemmPlanStore::FindAttention(const std::string& key) const {
  absl::MutexLock lock(&mutex_);
  const auto name = attention_.find(key);
  return name == attention_.end() ? "" : name->second;
}

std::string GemmPlanStore::SetAttention(const std::string& key, const std::string& name) {
  absl::MutexLock lock(&mutex_);
  std::string before = std::exchange(attention_[key], name);
  changed_ = changed_ || before != name;
  return before;
}

bool GemmPlanStore::changed() const {
  absl::MutexLock lock(&mutex_);
  return changed_;
}

absl::Status GemmPlanStore::Parse(const std::string& text, const std::string& name) {
  std::map<std::string, GemmPlan> plans;
  std::map<std::string, std::string> attention;
  try {
    const json stored = json::parse(text);
    if (stored.at("version").get<int>() == kVersion) {
      for (const auto& [key, words] : stored.at("plans").items()) {
        plans[key] = words.get<GemmPlan>();
      }
      // Workers of before attention could be chosen wrote none.
      attention = stored.value("attention", attention);
    }
  } catch (const json::exception&) {
    return absl::DataLossError(absl::StrCat(
        name,
        " is damaged: it is not the list of measured matrix products that a worker wrote; "
        "remove it, and they are measured again"));
  }
  absl::MutexLock lock(&mutex_);
  plans_ = std::move(plans);
  attention_ = std::move(attention);
  changed_ = false;
  return absl::OkStatus();
}

std::string GemmPlanStore::Text() {
  json stored = {{"version", kVersion}, {"plans", json::object()}};
  absl::MutexLock lock(&mutex_);
  for (const auto& [key, plan] : plans_) stored["plans"][key] = plan;
  stored["attention"] = attention_;
  changed_ = false;
  return stored.dump(1) + "\n";
}

}  // namespace causeway::worker::cuda
