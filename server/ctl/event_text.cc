#include "server/ctl/event_text.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/printable.h"
#include "nlohmann/json.hpp"

namespace causeway::server {

int LevelRank(absl::string_view level) {
  constexpr const char* kLevels[] = {"info", "warn", "error"};
  const auto* const found = std::ranges::find(kLevels, level);
  return found == std::end(kLevels) ? -1 : static_cast<int>(found - std::begin(kLevels));
}

std::string EventText(const v1::RunEvent& event, absl::TimeZone zone) {
  absl::Time time;
  const bool known = absl::ParseTime(absl::RFC3339_full, event.time(), &time, nullptr);
  return absl::StrFormat(
      "%s  %-5s  %s\n",
      known ? absl::FormatTime("%Y-%m-%d %H:%M:%S", time, zone) : Printable(event.time()),
      Printable(event.level()), Printable(event.message()));
}

std::string EventJson(const v1::RunEvent& event) {
  nlohmann::json line = nlohmann::json::parse(event.fields_json(), nullptr, false);
  if (!line.is_object()) line = nlohmann::json::object();
  line["time"] = event.time();
  line["event"] = event.event();
  line["level"] = event.level();
  line["message"] = event.message();
  return absl::StrCat(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), "\n");
}

}  // namespace causeway::server
