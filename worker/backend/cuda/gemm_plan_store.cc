#include "worker/backend/cuda/gemm_plan_store.h"

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

GemmPlan GemmPlanStore::Keep(const std::string& key, const GemmPlan& plan) {
  absl::MutexLock lock(&mutex_);
  const auto [kept, added] = plans_.emplace(key, plan);
  changed_ = changed_ || added;
  return kept->second;
}

bool GemmPlanStore::changed() const {
  absl::MutexLock lock(&mutex_);
  return changed_;
}

absl::Status GemmPlanStore::Parse(const std::string& text, const std::string& name) {
  std::map<std::string, GemmPlan> plans;
  try {
    const json stored = json::parse(text);
    if (stored.at("version").get<int>() == kVersion) {
      for (const auto& [key, words] : stored.at("plans").items()) {
        plans[key] = words.get<GemmPlan>();
      }
    }
  } catch (const json::exception&) {
    return absl::DataLossError(absl::StrCat(
        name,
        " is damaged: it is not the list of measured matrix products that a worker wrote; "
        "remove it, and they are measured again"));
  }
  absl::MutexLock lock(&mutex_);
  plans_ = std::move(plans);
  changed_ = false;
  return absl::OkStatus();
}

std::string GemmPlanStore::Text() {
  json stored = {{"version", kVersion}, {"plans", json::object()}};
  absl::MutexLock lock(&mutex_);
  for (const auto& [key, plan] : plans_) stored["plans"][key] = plan;
  changed_ = false;
  return stored.dump(1) + "\n";
}

absl::Status GemmPlanStore::Read(FileSystem& file_system, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, file_system.ReadFile(path));
  return Parse(text, path);
}

absl::Status GemmPlanStore::Write(FileSystem& file_system, const std::string& path) {
  return WriteFileAtomically(file_system, path, absl::string_view(Text()));
}

}  // namespace causeway::worker::cuda
