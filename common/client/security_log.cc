#include "common/client/security_log.h"

#include <string>

#include "common/telemetry/log.h"

namespace causeway {

void LogSecurity(const ChannelSecurity& security) {
  for (const std::string& warning : security.warnings) Log().warn("{}", warning);
  if (security.files == nullptr) return;
  security.files->ReportTo([](const CertificateNotice& notice) {
    if (notice.fit) {
      Log().info("{}", notice.message);
    } else {
      Log().warn("{}", notice.message);
    }
  });
}

}  // namespace causeway
