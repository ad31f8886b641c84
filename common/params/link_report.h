// A worker's word on its link, for the files that people and tools read.
#ifndef CAUSEWAY_COMMON_PARAMS_LINK_REPORT_H_
#define CAUSEWAY_COMMON_PARAMS_LINK_REPORT_H_

#include "causeway/v1/session.pb.h"
#include "nlohmann/json.hpp"

namespace causeway {

// By the names of the fields in session.proto.
nlohmann::json LinkReportToJson(const v1::LinkReport& link);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_PARAMS_LINK_REPORT_H_
