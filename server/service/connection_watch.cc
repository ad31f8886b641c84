#include "server/service/connection_watch.h"

// Not netinet/tcp.h, whose struct tcp_info ends before what is wanted here.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace causeway::server {

std::optional<ConnectionFacts> FactsOf(int descriptor) {
  tcp_info info = {};
  socklen_t length = sizeof(info);
  if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return std::nullopt;
  // A kernel before 5.4 does not say what the peer can take.
  if (length < offsetof(tcp_info, tcpi_snd_wnd) + sizeof(info.tcpi_snd_wnd)) return std::nullopt;
  return ConnectionFacts{
      .received_bytes = static_cast<int64_t>(info.tcpi_bytes_received),
      .reads = info.tcpi_notsent_bytes == 0 || (info.tcpi_snd_wnd > 0 && info.tcpi_probes == 0)};
}

absl::string_view ConnectionWatch::Judge(const ConnectionFacts& facts, bool admitted,
                                         absl::Duration now) {
  if (admitted || facts.received_bytes <= kStrangerBytes) {
    strange_since_.reset();
  } else {
    if (!strange_since_.has_value()) strange_since_ = now;
    const bool too_much = facts.received_bytes > kMostStrangerBytes;
    if (too_much || now - *strange_since_ >= kPatience) {
      return "it sends without having shown who it is";
    }
  }
  if (facts.reads) {
    unread_.reset();
  } else if (!unread_.has_value()) {
    unread_ = {.since = now, .received_bytes = facts.received_bytes};
  } else if (now - unread_->since >= kPatience &&
             facts.received_bytes - unread_->received_bytes >= kUnreadBytes) {
    return "it asks and does not read what it is answered";
  }
  return "";
}

}  // namespace causeway::server
