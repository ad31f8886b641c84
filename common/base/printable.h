// Texts of peers, fit for a terminal and a log.
#ifndef CAUSEWAY_COMMON_BASE_PRINTABLE_H_
#define CAUSEWAY_COMMON_BASE_PRINTABLE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace causeway {

// The same with '?' in place of every control character, C0 and C1: what a peer says of itself
// neither begins a line of its own in a log nor gives orders to the terminal that shows it.
std::string Printable(absl::string_view text);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_BASE_PRINTABLE_H_
