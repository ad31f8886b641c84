#include "common/rpc/tcp_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"

namespace causeway {
namespace {

constexpr size_t kMostProxyBytes = 4096;

// `whose` stands before what the address does.
absl::StatusOr<TcpStream> OpenOne(const std::string& address, absl::Time deadline,
                                  const std::string& whose) {
  const absl::StatusOr<std::vector<TcpAddress>> found = ResolveAddress(address);
  RETURN_IF_ERROR(Annotate(found.status(), whose));
  absl::Status last;
  for (size_t i = 0; i < found->size(); ++i) {
    const auto others = static_cast<int>(found->size() - i - 1);
    absl::StatusOr<TcpStream> connection = TcpStream::Open((*found)[i], deadline, others);
    if (connection.ok()) return connection;
    last = connection.status();
  }
  return absl::UnavailableError(absl::StrCat(whose, " ", last.message()));
}

}  // namespace

absl::Status ConnectError(int error) {
  if (error == 0) return absl::OkStatus();
  if (error == EINPROGRESS || error == ETIMEDOUT) {
    return absl::DeadlineExceededError("does not answer");
  }
  if (error == ECONNREFUSED) return absl::UnavailableError(kRefusesConnection);
  return absl::UnavailableError(absl::AsciiStrToLower(std::strerror(error)));
}

absl::StatusOr<TcpStream> TcpStream::Open(const TcpAddress& address, absl::Time deadline,
                                          int others) {
  sockaddr_storage storage;
  const socklen_t length = ToSocketAddress(address, storage);
  const absl::Time now = absl::Now();
  TcpStream result(now + (deadline - now) / (others + 1));
  result.socket_.Reset(socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!result.socket_.valid()) return ConnectError(errno);
  int error = 0;
  if (connect(result.socket_.get(), reinterpret_cast<const sockaddr*>(&storage), length) != 0) {
    error = errno;
  }
  if (error == EINPROGRESS && result.Wait(POLLOUT)) {
    socklen_t size = sizeof(error);
    getsockopt(result.socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  RETURN_IF_ERROR(ConnectError(error));
  result.deadline_ = deadline;
  return result;
}

bool TcpStream::Send(absl::string_view data) {
  while (!data.empty()) {
    const ssize_t sent = send(socket_.get(), data.data(), data.size(), MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (!Wait(POLLOUT)) return false;
      continue;
    }
    if (sent <= 0) return false;
    data.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

ssize_t TcpStream::Receive(char* data, size_t size) {
  for (;;) {
    const ssize_t got = recv(socket_.get(), data, size, 0);
    if (got >= 0 || (errno != EAGAIN && errno != EINTR)) return got;
    if (!Wait(POLLIN)) return -1;
  }
}

bool TcpStream::Wait(int16_t events) const {
  while (!late()) {
    pollfd wanted{socket_.get(), events, 0};
    const int64_t left = absl::ToInt64Milliseconds(deadline_ - absl::Now());
    const int ready = poll(&wanted, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 60'000)) + 1);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
  return false;
}

absl::StatusOr<TcpStream> DialTcp(const std::string& address, absl::Time deadline) {
  const ProxySetting proxy = ProxyTo(address);
  return proxy.used ? DialThrough(proxy, address, deadline) : OpenOne(address, deadline, address);
}

absl::StatusOr<TcpStream> DialThrough(const ProxySetting& proxy, const std::string& address,
                                      absl::Time deadline) {
  const std::string name =
      absl::StrCat("the proxy ", Printable(proxy.address), " (", proxy.variable, ")");
  ASSIGN_OR_RETURN(TcpStream connection, OpenOne(proxy.address, deadline, name));
  connection.Send(absl::StrCat("CONNECT ", address, " HTTP/1.1\r\nHost: ", address, "\r\n",
                               proxy.credentials.empty()
                                   ? ""
                                   : absl::StrCat("Proxy-Authorization: Basic ",
                                                  absl::Base64Escape(proxy.credentials), "\r\n"),
                               "\r\n"));
  // Byte for byte: what follows the answer is of the other end.
  std::string answer;
  char byte = 0;
  while (!absl::EndsWith(answer, "\r\n\r\n") && answer.size() < kMostProxyBytes &&
         connection.Receive(&byte, 1) == 1) {
    answer += byte;
  }
  const std::string line =
      Printable(absl::StripAsciiWhitespace(absl::string_view(answer).substr(0, answer.find('\n'))));
  if (line.empty()) {
    return absl::UnavailableError(absl::StrCat(name, " does not answer CONNECT ", address));
  }
  constexpr size_t kVersionBytes = 8;  // HTTP/1.1
  if (absl::StartsWith(line, "HTTP/1.") && line.size() > kVersionBytes &&
      absl::StartsWith(absl::string_view(line).substr(kVersionBytes), " 200") &&
      absl::EndsWith(answer, "\r\n\r\n")) {
    return connection;
  }
  return absl::UnavailableError(absl::StrCat(name, " answers CONNECT ", address, " with ", line));
}

}  // namespace causeway
