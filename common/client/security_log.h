// What a client's credentials have to say, as lines of the log.
#ifndef CAUSEWAY_COMMON_CLIENT_SECURITY_LOG_H_
#define CAUSEWAY_COMMON_CLIENT_SECURITY_LOG_H_

#include "common/rpc/security.h"

namespace causeway {

// Logs the warnings of `security`, and from then on each change of its files.
void LogSecurity(const ChannelSecurity& security);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_CLIENT_SECURITY_LOG_H_
