// One TLS handshake with a coordinator, made only to learn how it goes. gRPC keeps the reasons to
// itself: a worker that was refused sees no more than that nobody answers.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/identity/certificate.h"
#include "common/rpc/security.h"

namespace causeway {

// Connects to HOST:PORT, with the same checks on both sides as gRPC's connections; `options` use
// TLS. FAILED_PRECONDITION if it can never work as it is: the server speaks no TLS, or its
// certificate is not to be trusted or is for another name. PERMISSION_DENIED: a server that is to
// be trusted does not trust our certificate. Each with what to do. NOT_FOUND or UNAVAILABLE if no
// connection comes about, or no answer in time; and the errors of certificate.h. Returns the
// server's certificate.
absl::StatusOr<Certificate> TryTlsHandshake(const std::string& address,
                                            const SecurityOptions& options, absl::Duration timeout);

// The certificate (PEM) of the authority with that SHA-256, as the server at HOST:PORT shows it
// among those above its own. Nothing is trusted by it yet, and nothing was said.
// FAILED_PRECONDITION: the server shows another authority, or speaks no TLS. NOT_FOUND or
// UNAVAILABLE: nobody answers.
absl::StatusOr<std::string> FetchAuthority(const std::string& address, const std::string& sha256,
                                           absl::Duration timeout);

// Whether a server that a client without TLS cannot talk to speaks TLS. Trusts nobody and says
// nothing. False also if there is no answer.
bool SpeaksTls(const std::string& address, absl::Duration timeout);

// Why no coordinator answers at `address`, as far as TLS is the reason: FAILED_PRECONDITION, or OK.
absl::Status ExplainByTls(const std::string& address, const SecurityOptions& options,
                          absl::Duration timeout);

}  // namespace causeway
