#include "tests/unit/common/telemetry/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

namespace causeway {

HttpClient::HttpClient(int port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
}

HttpClient::~HttpClient() { close(socket_); }

void HttpClient::Send(absl::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;  // The server has hung up: Receive tells.
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

HttpAnswer HttpClient::Receive(bool head) const {
  HttpAnswer answer;
  std::string text;
  char byte = 0;
  while (!absl::EndsWith(text, "\r\n\r\n")) {
    if (recv(socket_, &byte, 1, 0) != 1) return {};
    text.push_back(byte);
  }
  const std::vector<std::string> lines = absl::StrSplit(text, "\r\n", absl::SkipEmpty());
  const std::vector<std::string> status = absl::StrSplit(lines[0], ' ');
  EXPECT_TRUE(absl::SimpleAtoi(status.at(1), &answer.status)) << lines[0];
  for (size_t i = 1; i < lines.size(); ++i) {
    std::pair<std::string, std::string> header = absl::StrSplit(lines[i], absl::MaxSplits(": ", 1));
    answer.headers.insert(std::move(header));
  }
  size_t length = 0;
  const auto declared = answer.headers.find("Content-Length");
  if (head || declared == answer.headers.end()) return answer;
  EXPECT_TRUE(absl::SimpleAtoi(declared->second, &length));
  answer.body.resize(length);
  if (length > 0) {
    EXPECT_EQ(recv(socket_, answer.body.data(), length, MSG_WAITALL), static_cast<ssize_t>(length));
  }
  return answer;
}

bool HttpClient::IsClosed() const {
  char byte = 0;
  return recv(socket_, &byte, 1, 0) <= 0;
}

HttpAnswer HttpClient::Get(const std::string& path, const std::string& more_headers) const {
  Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\n", more_headers, "\r\n"));
  return Receive();
}

HttpAnswer HttpGet(int port, const std::string& path) { return HttpClient(port).Get(path); }

}  // namespace causeway
