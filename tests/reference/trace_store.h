// A coordinator's store that writes every delta and every answer into a folder, for the oracle.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "nlohmann/json.hpp"
#include "tests/unit/server/store/memory_store.h"

namespace causeway {

// Writes values or bytes as they lie in memory (little endian) to folder/name.
template <typename T>
absl::Status WriteTraceFile(const std::string& folder, const std::string& name,
                            std::span<const T> values);
absl::Status WriteTraceText(const std::string& folder, const std::string& name,
                            absl::string_view text);

// Thread-safe.
class TraceStore final : public server::MemoryStore {
 public:
  // The folder exists.
  explicit TraceStore(std::string folder) : folder_(std::move(folder)) {}

  absl::Status SaveContribution(const v1::Contribution& record,
                                std::span<const uint8_t> object) override;
  absl::Status SaveRound(const v1::Round& record, std::span<const uint8_t> answer) override;

  // Arrays of objects, for trace.json.
  nlohmann::json contributions_json() const;
  nlohmann::json rounds_json() const;
  // (fragment, round) -> the hash of the published values that the coordinator announced.
  std::map<std::pair<int, int64_t>, uint64_t> published_hashes() const;

 private:
  const std::string folder_;
  mutable absl::Mutex mutex_;
  nlohmann::json contributions_ ABSL_GUARDED_BY(mutex_) = nlohmann::json::array();
  nlohmann::json rounds_ ABSL_GUARDED_BY(mutex_) = nlohmann::json::array();
  std::map<std::pair<int, int64_t>, uint64_t> published_hashes_ ABSL_GUARDED_BY(mutex_);
};

// "published.1.3.f32": the file with the published values of a fragment after a round.
std::string PublishedFileName(int fragment, int64_t round);

template <typename T>
absl::Status WriteTraceFile(const std::string& folder, const std::string& name,
                            std::span<const T> values) {
  return WriteTraceText(
      folder, name,
      absl::string_view(reinterpret_cast<const char*>(values.data()), values.size_bytes()));
}

}  // namespace causeway
