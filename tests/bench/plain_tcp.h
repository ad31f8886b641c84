// The limit of every transfer on one machine: a blocking TCP connection that carries bytes and
// nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

namespace causeway::bench {

// Takes objects from one connection, each into the same memory, and answers each with a byte, until
// the connection ends.
class TcpSink {
 public:
  // Listens on loopback.
  static absl::StatusOr<TcpSink> Listen();
  ~TcpSink();
  TcpSink(TcpSink&& other) noexcept;
  TcpSink& operator=(TcpSink&&) = delete;

  int port() const { return port_; }
  absl::Status Serve(size_t object_bytes);

 private:
  TcpSink(int socket, int port) : socket_(socket), port_(port) {}
  int socket_;
  int port_;
};

class TcpSource {
 public:
  static absl::StatusOr<TcpSource> Connect(int port);
  ~TcpSource();
  TcpSource(TcpSource&& other) noexcept;
  TcpSource& operator=(TcpSource&&) = delete;

  // Writes the object, 1 MiB at a time, and waits for the answer.
  absl::Status Send(std::span<const uint8_t> object);

 private:
  explicit TcpSource(int socket) : socket_(socket) {}
  int socket_;
};

}  // namespace causeway::bench
