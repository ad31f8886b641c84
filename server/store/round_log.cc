#include "server/store/round_log.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"

namespace causeway::server {
namespace {

std::string Line(const RoundRecord& record) {
  return RoundToJson(record).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::span<const uint8_t> AsBytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

nlohmann::json RoundToJson(const RoundRecord& record) {
  return {{"unix_s", record.published_unix_s},
          {"fragment", record.fragment},
          {"round", record.round},
          {"contributors", record.contributors},
          {"weights", record.weights},
          {"send_step", record.send_step},
          {"first_unix_s", record.first_unix_s},
          {"closed_unix_s", record.closed_unix_s},
          {"published_unix_s", record.published_unix_s},
          {"bytes_in", record.bytes_in},
          {"bytes_out", record.bytes_out},
          {"published_hash", HashToHex(record.published_hash)},
          {"reason", record.reason}};
}

absl::StatusOr<std::unique_ptr<RoundLog>> RoundLog::Open(FileSystem& file_system,
                                                         const std::string& path,
                                                         std::span<const StoredRound> rounds) {
  std::vector<const StoredRound*> ordered;
  for (const StoredRound& round : rounds) ordered.push_back(&round);
  std::ranges::sort(ordered, {}, &StoredRound::commit);
  std::string expected;
  for (const StoredRound* round : ordered) expected += Line(round->record);
  const absl::StatusOr<std::string> found = file_system.ReadFile(path);
  if (!found.ok() || *found != expected) {
    const std::string temporary = path + ".tmp";
    ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, file_system.Create(temporary));
    RETURN_IF_ERROR(file->Append(AsBytes(expected)));
    RETURN_IF_ERROR(file_system.Rename(temporary, path));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, file_system.OpenForAppend(path));
  return std::unique_ptr<RoundLog>(new RoundLog(std::move(file)));
}

void RoundLog::Append(const RoundRecord& record) {
  if (file_ == nullptr) return;
  const absl::Status status = file_->Append(AsBytes(Line(record)));
  if (status.ok()) return;
  Log().warn("{}; rounds are recorded in the database alone until the next start",
             std::string(status.message()));
  file_ = nullptr;
}

}  // namespace causeway::server
