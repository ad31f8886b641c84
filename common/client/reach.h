// From a name to something that answers as a coordinator does: what stands in the way, told apart
// before gRPC makes one error of it all.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "causeway/v1/session.grpc.pb.h"
#include "common/client/link.h"
#include "common/rpc/channel.h"
#include "common/rpc/security.h"
#include "common/rpc/tcp_address.h"

namespace causeway {

// Between here and HOST:PORT.
struct Way {
  // Connections come about, and go to a gRPC server as far as can be seen without TLS.
  bool open = false;
  std::string finding = {};  // Where it leads, or what stands in it.
  // Says what to do; of an open way, because not all is as it should be. Empty for a name without
  // an address: the finding says it.
  std::string remedy = {};
};
// Looks by itself, as gRPC would connect. Whatever is silent takes `patience`.
Way FindWay(const std::string& address, bool uses_tls, absl::Duration patience = absl::Seconds(5));
// The same without a proxy, to these addresses, which have so much time together.
Way FindWayTo(const std::string& address, std::span<const TcpAddress> places, bool uses_tls,
              absl::Duration patience);

// Why nobody answers at HOST:PORT, and what to do, as a sentence; empty where nothing is wrong that
// can be seen from here, or the name alone. Blocks as FindWay does.
std::string ExplainNoAnswer(const std::string& address, bool uses_tls);

// A coordinator, which answers once its run is there.
struct ReachedRun {
  ChannelSecurity security;
  std::string target;  // For MakeChannel: all its addresses.
  std::shared_ptr<RenewedChannels> channels;
  v1::DescribeResponse run;
};

// How to reach a coordinator at `addresses`, HOST:PORT or several with commas between. Logs what is
// to be known of its security and names; asks for nothing yet. Errors of SplitAddresses,
// MakeChannelSecurity, of any of them, and ChannelTarget.
absl::StatusOr<ReachedRun> ApproachRun(const std::string& addresses,
                                       const SecurityOptions& security);

// The link of a member to such a coordinator, with channels for its lanes. Connections get the
// congestion control (tcp_links.h; empty: they keep the system's).
Link::Options LinkTo(const ReachedRun& reached, const std::string& addresses,
                     const std::string& congestion_control);

// DescribeRun (session.h), with its `stop`, that does not wait for a coordinator that will never
// talk to this side, and says what stands in the way of one that does not answer.
absl::StatusOr<v1::DescribeResponse> DescribeOrExplain(v1::Session::StubInterface& stub,
                                                       const std::string& coordinator,
                                                       const SecurityOptions& security,
                                                       absl::Duration timeout,
                                                       absl::string_view region_id = "",
                                                       const std::function<bool()>& stop = {});

// Logs the warnings of `security`, and from then on each change of its files.
void LogSecurity(const ChannelSecurity& security);

}  // namespace causeway
