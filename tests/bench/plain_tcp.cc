#include "tests/bench/plain_tcp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/base/byte_buffer.h"

namespace causeway::bench {
namespace {

constexpr size_t kWriteBytes = size_t{1} << 20;

absl::Status Failed(const char* what) { return absl::ErrnoToStatus(errno, what); }

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

}  // namespace

absl::StatusOr<TcpSink> TcpSink::Listen() {
  TcpSink sink(socket(AF_INET, SOCK_STREAM, 0), 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (sink.socket_ < 0 || bind(sink.socket_, generic, length) != 0 ||
      listen(sink.socket_, 1) != 0 || getsockname(sink.socket_, generic, &length) != 0) {
    return Failed("cannot listen on loopback");
  }
  sink.port_ = ntohs(address.sin_port);
  return sink;
}

TcpSink::TcpSink(TcpSink&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)), port_(other.port_) {}

TcpSink::~TcpSink() {
  if (socket_ >= 0) close(socket_);
}

absl::Status TcpSink::Serve(size_t object_bytes) {
  const int connection = accept(socket_, nullptr, nullptr);
  if (connection < 0) return Failed("accept");
  ByteBuffer object(object_bytes);
  size_t at = 0;
  for (;;) {
    const ssize_t got =
        recv(connection, object.data() + at, std::min(kWriteBytes, object.size() - at), 0);
    if (got <= 0) break;
    at += static_cast<size_t>(got);
    if (at < object.size()) continue;
    at = 0;
    const uint8_t answer = 1;
    if (send(connection, &answer, 1, MSG_NOSIGNAL) != 1) break;
  }
  close(connection);
  return absl::OkStatus();
}

absl::StatusOr<TcpSource> TcpSource::Connect(int port) {
  TcpSource source(socket(AF_INET, SOCK_STREAM, 0));
  const sockaddr_in address = Loopback(port);
  const int at_once = 1;
  if (source.socket_ < 0 ||
      connect(source.socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      setsockopt(source.socket_, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once)) != 0) {
    return Failed("cannot connect over loopback");
  }
  return source;
}

TcpSource::TcpSource(TcpSource&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}

TcpSource::~TcpSource() {
  if (socket_ >= 0) close(socket_);
}

absl::Status TcpSource::Send(std::span<const uint8_t> object) {
  for (size_t at = 0; at < object.size();) {
    const ssize_t sent =
        send(socket_, object.data() + at, std::min(kWriteBytes, object.size() - at), MSG_NOSIGNAL);
    if (sent <= 0) return Failed("send");
    at += static_cast<size_t>(sent);
  }
  uint8_t answer = 0;
  return recv(socket_, &answer, 1, 0) == 1 ? absl::OkStatus() : Failed("recv");
}

}  // namespace causeway::bench
