// The files of the status page, which the build puts into the program (embed.cmake). app.js is all
// of the page's modules.
#ifndef CAUSEWAY_SERVER_HTTP_EMBEDDED_PAGE_H_
#define CAUSEWAY_SERVER_HTTP_EMBEDDED_PAGE_H_

#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace causeway::server {

// By name: "index.html", "app.js", "chart.js", ...
const std::map<std::string, absl::string_view>& EmbeddedPage();

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_HTTP_EMBEDDED_PAGE_H_
