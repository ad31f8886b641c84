// A worker's word on its link, for the files that people and tools read.
#pragma once

#include "causeway/v1/session.pb.h"
#include "nlohmann/json.hpp"

namespace causeway {

// By the names of the fields in session.proto.
nlohmann::json LinkReportToJson(const v1::LinkReport& link);

}  // namespace causeway
