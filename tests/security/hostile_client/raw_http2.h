// A client that speaks HTTP/2 as no library would: frames as they are written, no limit kept, and
// nothing read unless it is asked for.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/rpc/security.h"

namespace causeway::hostile {

enum class FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kContinuation = 9
};
inline constexpr uint8_t kEndStream = 1;
inline constexpr uint8_t kEndHeaders = 4;

// One frame, payload included.
std::string Frame(FrameType type, uint8_t flags, uint32_t stream, absl::string_view payload);
// A header without compression, not to be remembered.
std::string Header(absl::string_view name, absl::string_view value);
// Begins every call: a POST of that method.
std::string CallHeaders(absl::string_view method);

// One connection over TLS, with the certificate of `security` if it has one. Not thread-safe.
class RawHttp2 {
 public:
  // Connects to that port of this machine and says the preface, with empty settings. UNAVAILABLE
  // where that fails.
  static absl::StatusOr<std::unique_ptr<RawHttp2>> Open(int port, const SecurityOptions& security);
  ~RawHttp2();
  RawHttp2(const RawHttp2&) = delete;
  RawHttp2& operator=(const RawHttp2&) = delete;

  // False: the other side has ended the connection. Waits until TCP takes the bytes, at most
  // ten seconds, after which it is false, too.
  bool Send(absl::string_view bytes);
  // Throws away what has come. False as Send.
  bool Drain();
  // Reads frames up to one that ends that stream. False as Send.
  bool AwaitAnswer(uint32_t stream);
  // Reads until the other side ends the connection, at most until then. False: it goes on.
  bool AwaitEnd(absl::Time until);

 private:
  RawHttp2(int socket, SSL_CTX* context, SSL* ssl)
      : socket_(socket), context_(context), ssl_(ssl) {}
  // Waits for the socket. False: too long.
  bool Wait(int error) const;
  // Reads so many bytes. False as Send.
  bool Read(char* bytes, size_t count);

  const int socket_;
  SSL_CTX* const context_;
  SSL* const ssl_;
};

}  // namespace causeway::hostile
