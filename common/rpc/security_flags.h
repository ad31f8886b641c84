// The flags of SecurityOptions, the same in both programs.
#ifndef CAUSEWAY_COMMON_RPC_SECURITY_FLAGS_H_
#define CAUSEWAY_COMMON_RPC_SECURITY_FLAGS_H_

#include "common/rpc/security.h"

namespace causeway {

SecurityOptions SecurityOptionsFromFlags();

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_RPC_SECURITY_FLAGS_H_
