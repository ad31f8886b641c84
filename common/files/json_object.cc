#include "common/files/json_object.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway {

absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view source,
                                               const JsonLimits& limits) {
  absl::StatusOr<nlohmann::json> json = ParseLimitedJson(text, limits);
  if (!json.ok()) return Annotate(json.status(), source);
  if (!json->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": this is no JSON object"));
  }
  return json;
}

}  // namespace causeway
