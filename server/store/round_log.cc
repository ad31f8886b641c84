#include "server/store/round_log.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/files/message_json.h"
#include "common/telemetry/log.h"

namespace causeway::server {
namespace {

std::string Line(const v1::Round& round) {
  return RoundToJson(round).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::span<const uint8_t> AsBytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

nlohmann::json RoundToJson(const v1::Round& round) {
  nlohmann::json json = MessageToJson(round);
  json.erase("answer");
  json.erase("commit");
  json["unix_s"] = round.published_unix_s();
  return json;
}

absl::StatusOr<std::unique_ptr<RoundLog>> RoundLog::Open(FileSystem& file_system,
                                                         const std::string& path,
                                                         std::span<const v1::Round> rounds) {
  std::vector<const v1::Round*> ordered;
  for (const v1::Round& round : rounds) ordered.push_back(&round);
  std::ranges::sort(ordered, {}, &v1::Round::commit);
  std::string expected;
  for (const v1::Round* round : ordered) expected += Line(*round);
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

void RoundLog::Append(const v1::Round& round) {
  if (file_ == nullptr) return;
  const absl::Status status = file_->Append(AsBytes(Line(round)));
  if (status.ok()) return;
  Log().warn("{}; rounds are recorded in the database alone until the next start",
             std::string(status.message()));
  file_ = nullptr;
}

}  // namespace causeway::server
