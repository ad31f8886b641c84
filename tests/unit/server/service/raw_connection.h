// A TCP connection to this machine that speaks no protocol.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "server/service/connection_listener.h"

namespace causeway::server {

class RawConnection {
 public:
  // Not connected yet. From an address of this machine: 127.x.x.x are all. Port 0: any.
  explicit RawConnection(const std::string& from = "127.0.0.1", uint16_t own_port = 0)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int reuse = 1;
    setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
    const sockaddr_in own = Address(from, own_port);
    bind(socket_.get(), reinterpret_cast<const sockaddr*>(&own), sizeof(own));
  }
  explicit RawConnection(int port, const std::string& from = "127.0.0.1") : RawConnection(from) {
    Connect(port);
  }

  // False if nobody listens.
  bool Connect(int port) {
    const sockaddr_in peer = Address("127.0.0.1", static_cast<uint16_t>(port));
    return connect(socket_.get(), reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)) == 0;
  }
  // The port that the other side sees.
  uint16_t own_port() const {
    sockaddr_in own = {};
    socklen_t length = sizeof(own);
    getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&own), &length);
    return ntohs(own.sin_port);
  }
  // Ends it at once; its port is free.
  void Reset() {
    const linger at_once = {.l_onoff = 1, .l_linger = 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    socket_.Reset();
  }
  bool Send(const std::string& bytes) const {
    return send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // Waits for a byte; -1 at the end.
  int ReadByte() const {
    char byte = 0;
    return recv(socket_.get(), &byte, 1, 0) == 1 ? static_cast<unsigned char>(byte) : -1;
  }
  // Waits until the other side says something, or ends it.
  bool IsEnded() const { return ReadByte() < 0; }

 private:
  static sockaddr_in Address(const std::string& ip, uint16_t port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    inet_pton(AF_INET, ip.c_str(), &address.sin_addr);
    return address;
  }

  OwnedDescriptor socket_;
};

}  // namespace causeway::server
