#include "common/params/link_report.h"

namespace causeway {

nlohmann::json LinkReportToJson(const v1::LinkReport& link) {
  return {{"goodput_up_bytes_per_second", link.goodput_up_bytes_per_second()},
          {"goodput_down_bytes_per_second", link.goodput_down_bytes_per_second()},
          {"rtt_seconds", link.rtt_seconds()},
          {"resent_chunks", link.resent_chunks()},
          {"resumes", link.resumes()},
          {"retransmitted_segments", link.retransmitted_segments()},
          {"send_blocked_seconds", link.send_blocked_seconds()},
          {"connections", link.connections()}};
}

}  // namespace causeway
