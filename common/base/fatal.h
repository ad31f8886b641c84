// The end of the program for a programmer's error.
#ifndef CAUSEWAY_COMMON_BASE_FATAL_H_
#define CAUSEWAY_COMMON_BASE_FATAL_H_

#include <cstdio>
#include <cstdlib>
#include <string>

namespace causeway {

// Never for what a user can get wrong: that is a Status.
[[noreturn]] inline void Fatal(const std::string& message) {
  std::fprintf(stderr, "fatal: %s\n", message.c_str());
  std::abort();
}

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_BASE_FATAL_H_
