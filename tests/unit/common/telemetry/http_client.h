// A client of HTTP on loopback that sends just the bytes it is told to, for tests.
#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace causeway {

struct HttpAnswer {
  int status = 0;  // 0: the server hung up without one.
  std::map<std::string, std::string> headers;
  std::string body;
};

// One connection.
class HttpClient {
 public:
  explicit HttpClient(int port);  // A failure is a test's failure.
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void Send(absl::string_view bytes) const;
  // Reads one answer, with as much of a body as it declares (none after HEAD).
  HttpAnswer Receive(bool head = false) const;
  // Waits until the server closes; true if nothing but that came.
  bool IsClosed() const;

  // A well-formed request on this connection and its answer.
  HttpAnswer Get(const std::string& path, const std::string& more_headers = "") const;

 private:
  int socket_;
};

// GET on a connection of its own.
HttpAnswer HttpGet(int port, const std::string& path);

}  // namespace causeway
