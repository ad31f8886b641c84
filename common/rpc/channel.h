// Channels and servers with the settings that bulk transfers over long links need.
#ifndef CAUSEWAY_COMMON_RPC_CHANNEL_H_
#define CAUSEWAY_COMMON_RPC_CHANNEL_H_

#include <grpcpp/channel.h>
#include <grpcpp/server_builder.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace causeway {

// A channel to HOST:PORT with keepalive, quick reconnects and bounded messages. `connection`
// numbers the TCP connections to one peer: channels with different numbers never share one.
// Plaintext: the peer must be trusted or on this machine.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, int connection);

// The same limits for a server: bounded messages, streams and memory; no shared port.
void ConfigureServer(grpc::ServerBuilder& builder);

// "HOST:PORT" with a port of 1 .. 65535 (0 too where `allow_any_port`). INVALID_ARGUMENT says
// what is wrong. Does not resolve the name.
absl::Status CheckAddress(absl::string_view address, bool allow_any_port);

// glibc gives receive buffers back to the system and faults them in again, which halves the rate
// of a stream. Call first in main(), before any other thread runs.
void TuneAllocatorForStreams();

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_RPC_CHANNEL_H_
