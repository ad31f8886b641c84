#include "tests/reference/trace_store.h"

#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"

namespace causeway {

absl::Status WriteTraceText(const std::string& folder, const std::string& name,
                            absl::string_view text) {
  ASSIGN_OR_RETURN(const auto file, FileSystem::Real()->Create(JoinPath(folder, name)));
  return file->Append(std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
}

std::string PublishedFileName(int fragment, int64_t round) {
  return absl::StrCat("published.", fragment, ".", round, ".f32");
}

absl::Status TraceStore::SaveContribution(const v1::Contribution& record,
                                          std::span<const uint8_t> object) {
  RETURN_IF_ERROR(MemoryStore::SaveContribution(record, object));
  const std::string name =
      absl::StrCat("delta.", record.header().fragment(), ".", record.header().round(), ".",
                   record.header().worker_id(), ".bin");
  RETURN_IF_ERROR(WriteTraceFile(folder_, name, object));
  absl::MutexLock lock(&mutex_);
  contributions_.push_back({{"fragment", record.header().fragment()},
                            {"round", record.header().round()},
                            {"worker", record.header().worker_id()},
                            {"tokens", record.header().tokens()},
                            {"send_step", record.header().send_step()},
                            {"object", name}});
  return absl::OkStatus();
}

absl::Status TraceStore::SaveRound(const v1::Round& record, std::span<const uint8_t> answer) {
  RETURN_IF_ERROR(MemoryStore::SaveRound(record, answer));
  const std::string name = absl::StrCat("answer.", record.fragment(), ".", record.round(), ".bin");
  RETURN_IF_ERROR(WriteTraceFile(folder_, name, answer));
  absl::MutexLock lock(&mutex_);
  rounds_.push_back(
      {{"fragment", record.fragment()},
       {"round", record.round()},
       {"contributors",
        std::vector<std::string>(record.contributors().begin(), record.contributors().end())},
       {"weights", std::vector<double>(record.weights().begin(), record.weights().end())},
       {"answer", name},
       {"published", PublishedFileName(record.fragment(), record.round())}});
  published_hashes_[{record.fragment(), record.round()}] = record.published_hash();
  return absl::OkStatus();
}

nlohmann::json TraceStore::contributions_json() const {
  absl::MutexLock lock(&mutex_);
  return contributions_;
}

nlohmann::json TraceStore::rounds_json() const {
  absl::MutexLock lock(&mutex_);
  return rounds_;
}

std::map<std::pair<int, int64_t>, uint64_t> TraceStore::published_hashes() const {
  absl::MutexLock lock(&mutex_);
  return published_hashes_;
}

}  // namespace causeway
