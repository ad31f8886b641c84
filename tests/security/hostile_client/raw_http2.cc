#include "tests/security/hostile_client/raw_http2.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>

namespace causeway::hostile {
namespace {

constexpr int kPatienceMs = 10'000;
constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr unsigned char kProtocols[] = {2, 'h', '2'};

void AppendBigEndian(uint32_t value, int bytes, std::string& out) {
  for (int i = bytes - 1; i >= 0; --i) out.push_back(static_cast<char>(value >> (8 * i)));
}

// HPACK's integer of seven bits, and the bytes.
void AppendString(absl::string_view text, std::string& out) {
  constexpr size_t kPrefix = 127;
  size_t size = text.size();
  if (size < kPrefix) {
    out.push_back(static_cast<char>(size));
  } else {
    out.push_back(static_cast<char>(kPrefix));
    for (size -= kPrefix; size >= 128; size /= 128) {
      out.push_back(static_cast<char>(size % 128 + 128));
    }
    out.push_back(static_cast<char>(size));
  }
  out.append(text.data(), text.size());
}

}  // namespace

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, absl::string_view payload) {
  std::string frame;
  AppendBigEndian(static_cast<uint32_t>(payload.size()), 3, frame);
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  AppendBigEndian(stream, 4, frame);
  frame.append(payload.data(), payload.size());
  return frame;
}

std::string Header(absl::string_view name, absl::string_view value) {
  std::string out(1, '\0');
  AppendString(name, out);
  AppendString(value, out);
  return out;
}

std::string CallHeaders(absl::string_view method) {
  return absl::StrCat(Header(":method", "POST"), Header(":scheme", "https"),
                      Header(":path", method), Header(":authority", "localhost"),
                      Header("te", "trailers"), Header("content-type", "application/grpc"));
}

absl::StatusOr<std::unique_ptr<RawHttp2>> RawHttp2::Open(int port,
                                                         const SecurityOptions& security) {
  // A connection that the other side ends is an answer here.
  std::signal(SIGPIPE, SIG_IGN);
  const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
  SSL* const ssl = SSL_new(context);
  std::unique_ptr<RawHttp2> client(new RawHttp2(connection, context, ssl));
  if (!security.cert_file.empty() &&
      (SSL_use_certificate_file(ssl, security.cert_file.c_str(), SSL_FILETYPE_PEM) != 1 ||
       SSL_use_PrivateKey_file(ssl, security.key_file.c_str(), SSL_FILETYPE_PEM) != 1)) {
    return absl::InternalError("the certificate is not taken");
  }
  SSL_set_alpn_protos(ssl, kProtocols, sizeof(kProtocols));
  SSL_set_fd(ssl, connection);
  if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      SSL_connect(ssl) != 1 || fcntl(connection, F_SETFL, O_NONBLOCK) != 0) {
    return absl::UnavailableError("no TLS connection to the coordinator");
  }
  if (!client->Send(absl::StrCat(kPreface, Frame(FrameType::kSettings, 0, 0, "")))) {
    return absl::UnavailableError("the connection ended at once");
  }
  return client;
}

RawHttp2::~RawHttp2() {
  SSL_free(ssl_);
  SSL_CTX_free(context_);
  close(socket_);
}

bool RawHttp2::Wait(int error) const {
  pollfd poll_for = {.fd = socket_, .events = 0, .revents = 0};
  poll_for.events = error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
  return poll(&poll_for, 1, kPatienceMs) > 0;
}

bool RawHttp2::Send(absl::string_view bytes) {
  while (!bytes.empty()) {
    size_t sent = 0;
    const int result = SSL_write_ex(ssl_, bytes.data(), bytes.size(), &sent);
    if (result == 1) {
      bytes.remove_prefix(sent);
      continue;
    }
    const int error = SSL_get_error(ssl_, result);
    if ((error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) || !Wait(error)) {
      return false;
    }
  }
  return true;
}

bool RawHttp2::Read(char* bytes, size_t count) {
  while (count > 0) {
    size_t got = 0;
    const int result = SSL_read_ex(ssl_, bytes, count, &got);
    if (result == 1) {
      bytes += got;
      count -= got;
      continue;
    }
    const int error = SSL_get_error(ssl_, result);
    if ((error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) || !Wait(error)) {
      return false;
    }
  }
  return true;
}

bool RawHttp2::AwaitAnswer(uint32_t stream) {
  constexpr size_t kFrameHeader = 9;
  for (;;) {
    uint8_t header[kFrameHeader];
    if (!Read(reinterpret_cast<char*>(header), kFrameHeader)) return false;
    std::string payload((size_t{header[0]} << 16) + (size_t{header[1]} << 8) + header[2], ' ');
    if (!Read(payload.data(), payload.size())) return false;
    uint32_t of = 0;
    for (size_t i = 5; i < kFrameHeader; ++i) of = (of << 8) + header[i];
    if (of == stream && (header[4] & kEndStream) != 0) return true;
  }
}

bool RawHttp2::AwaitEnd(absl::Time until) {
  while (Drain()) {
    const int64_t left_ms = absl::ToInt64Milliseconds(until - absl::Now());
    pollfd poll_for = {.fd = socket_, .events = POLLIN, .revents = 0};
    if (left_ms <= 0 || poll(&poll_for, 1, static_cast<int>(left_ms)) == 0) return false;
  }
  return true;
}

bool RawHttp2::Drain() {
  char buffer[1 << 16];
  for (;;) {
    size_t got = 0;
    const int result = SSL_read_ex(ssl_, buffer, sizeof(buffer), &got);
    if (result == 1) continue;
    return SSL_get_error(ssl_, result) == SSL_ERROR_WANT_READ;
  }
}

}  // namespace causeway::hostile
