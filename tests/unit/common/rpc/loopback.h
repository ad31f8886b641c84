// Plain TCP sockets on loopback, for tests.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "common/rpc/tcp_address.h"
#include "gtest/gtest.h"

namespace causeway {

// Closes what it owns.
class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() { Close(); }
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  int descriptor() const { return descriptor_; }
  void Close() {
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = -1;
  }

  void SendAll(size_t bytes) const {
    const std::vector<char> data(bytes, 'x');
    size_t sent = 0;
    while (sent < bytes) {
      const ssize_t written = send(descriptor_, data.data() + sent, bytes - sent, MSG_NOSIGNAL);
      ASSERT_GT(written, 0);
      sent += static_cast<size_t>(written);
    }
  }
  void ReceiveAll(size_t bytes) const {
    std::vector<char> data(bytes);
    ASSERT_EQ(recv(descriptor_, data.data(), bytes, MSG_WAITALL), static_cast<ssize_t>(bytes));
  }

 private:
  int descriptor_;
};

// Listens on any free port of 127.0.0.1, or of both families where `dual`. Accepts when told to.
class Listener {
 public:
  explicit Listener(bool dual = false)
      : socket_(::socket(dual ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_storage address = {};
    socklen_t length = sizeof(sockaddr_in);
    if (dual) {
      const int off = 0;
      setsockopt(socket_.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
      address.ss_family = AF_INET6;  // Any address, any port.
      length = sizeof(sockaddr_in6);
    } else {
      auto* const in4 = reinterpret_cast<sockaddr_in*>(&address);
      in4->sin_family = AF_INET;
      in4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    }
    listens_ =
        bind(socket_.descriptor(), reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
        listen(socket_.descriptor(), 16) == 0;
    length = sizeof(address);
    getsockname(socket_.descriptor(), reinterpret_cast<sockaddr*>(&address), &length);
    port_ = FromSocketAddress(address).value_or(TcpAddress{}).port;
  }

  // False where the machine has no such family.
  bool listens() const { return listens_; }
  int port() const { return port_; }
  const Socket& socket() const { return socket_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  Socket Accept() const { return Socket(accept(socket_.descriptor(), nullptr, nullptr)); }

 private:
  Socket socket_;
  bool listens_ = false;
  int port_ = 0;
};

inline Socket ConnectTo(const TcpAddress& address) {
  sockaddr_storage storage = {};
  const socklen_t length = ToSocketAddress(address, storage);
  Socket socket(::socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(socket.descriptor(), reinterpret_cast<const sockaddr*>(&storage), length), 0)
      << address.ToString();
  return socket;
}

}  // namespace causeway
