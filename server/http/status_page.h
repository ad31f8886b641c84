// The status page and what it reads, as handlers of the coordinator's HTTP port:
//
//   /  /assets/NAME                                       the page
//   /api/v1/status  workers  rounds?most=N  series        JSON, see status_api.h
//   /api/v1/events?after=N
//   /api/v1/config                                        a textproto
//   /report.html                                          the run as it is, to be saved
#ifndef CAUSEWAY_SERVER_HTTP_STATUS_PAGE_H_
#define CAUSEWAY_SERVER_HTTP_STATUS_PAGE_H_

#include <string>

#include "common/http/http_server.h"
#include "server/http/status_api.h"

namespace causeway::server {

// The API outlives the handlers.
void AddStatusPage(const StatusApi& api, HttpHandlers& handlers);

// The page as one file that opens from a disk, with what the API answers now inside, as JSON in the
// element `answers`. stopped: the coordinator has, so this is what it leaves.
std::string ReportPage(const StatusApi& api, bool stopped);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_HTTP_STATUS_PAGE_H_
