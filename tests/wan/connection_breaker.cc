#include "tests/wan/connection_breaker.h"

namespace causeway::wan {

ConnectionBreaker::Verdict ConnectionBreaker::Observe(End from, const TcpHeader& header) {
  if (broken_.contains(header.endpoints)) {
    // A new connection may use the ports of a broken one.
    if (!header.syn) {
      Verdict verdict{.drop = true, .resets = {}};
      if (!header.reset) verdict.resets.push_back({from, MakeReset(header)});
      return verdict;
    }
    broken_.erase(header.endpoints);
    broken_.erase(header.endpoints.Reversed());
  }
  if (header.reset) {
    seen_.erase(header.endpoints);
    seen_.erase(header.endpoints.Reversed());
  } else {
    seen_.insert_or_assign(header.endpoints, LastPacket{from, header});
  }
  return {};
}

std::vector<ConnectionBreaker::Reset> ConnectionBreaker::BreakAll() {
  std::vector<Reset> resets;
  for (const auto& [endpoints, last] : seen_) {
    // Both directions of a connection are here, unless its first packet was the last one.
    const bool counted = broken_.contains(endpoints);
    if (!counted) ++connections_broken_;
    broken_.insert(endpoints);
    broken_.insert(endpoints.Reversed());
    resets.push_back({last.from, MakeReset(last.header)});
  }
  seen_.clear();
  return resets;
}

}  // namespace causeway::wan
