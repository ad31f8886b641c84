#include "common/rpc/security.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <array>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"
#include "common/identity/openssl.h"
#include "common/rpc/tcp_stream.h"

namespace causeway {
namespace {

using ContextPtr = std::unique_ptr<SSL_CTX, OpensslDeleter<SSL_CTX_free>>;
using SslPtr = std::unique_ptr<SSL, OpensslDeleter<SSL_free>>;

constexpr unsigned char kHttp2[] = {2, 'h', '2'};

// A TLS client over a Connection. OpenSSL writes to and reads from memory, so that it neither
// blocks nor raises SIGPIPE.
class Client {
 public:
  Client(SSL_CTX* context, TcpStream& connection)
      : connection_(connection),
        ssl_(SSL_new(context)),
        in_(BIO_new(BIO_s_mem())),
        out_(BIO_new(BIO_s_mem())) {
    SSL_set_bio(ssl_.get(), in_, out_);  // Owns both.
    SSL_set_app_data(ssl_.get(), this);
    SSL_set_connect_state(ssl_.get());
  }
  SSL* ssl() { return ssl_.get(); }
  // The certificate that the server has shown, trusted or not.
  const Certificate& server() const { return server_; }

  // For SSL_CTX_set_verify: has a look at the certificate, and leaves the verdict as it is.
  static int LookAtCertificate(int verdict, X509_STORE_CTX* store) {
    const auto* const ssl = static_cast<const SSL*>(
        X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
    X509* const x509 = X509_STORE_CTX_get0_cert(store);
    absl::StatusOr<Certificate> parsed = ParseCertificate(PemOf(x509), "the certificate");
    if (parsed.ok()) static_cast<Client*>(SSL_get_app_data(ssl))->server_ = *std::move(parsed);
    return verdict;
  }

  // Runs `step` (SSL_do_handshake, SSL_read ...) until it is done or fails. Returns OpenSSL's code.
  template <typename Step>
  int Run(const Step& step) {
    for (;;) {
      ERR_clear_error();
      const int result = step();
      const int error = result > 0 ? SSL_ERROR_NONE : SSL_get_error(ssl_.get(), result);
      if (!Flush()) return SSL_ERROR_SYSCALL;
      if (error != SSL_ERROR_WANT_READ) return error;
      std::array<char, 16 << 10> buffer;
      const ssize_t got = connection_.Receive(buffer.data(), buffer.size());
      if (got <= 0) return SSL_ERROR_SYSCALL;
      BIO_write(in_, buffer.data(), static_cast<int>(got));
    }
  }

 private:
  bool Flush() {
    char* data = nullptr;
    const int64_t size = BIO_get_mem_data(out_, &data);
    const bool sent = size <= 0 || connection_.Send({data, static_cast<size_t>(size)});
    BIO_reset(out_);
    // A peer's last words, before it closed, are worth reading.
    return sent || BIO_pending(in_) > 0;
  }

  TcpStream& connection_;
  const SslPtr ssl_;
  BIO* const in_;
  BIO* const out_;
  Certificate server_;
};

// Of one that was dialed.
std::string HostOf(const std::string& address) {
  return SplitHostPort(address, /*allow_any_port=*/false)->host;
}

absl::StatusOr<ContextPtr> MakeContext(const SecurityOptions& options) {
  ContextPtr context(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_alpn_protos(context.get(), kHttp2, sizeof(kHttp2));
  if (options.ca_file.empty()) return context;
  ASSIGN_OR_RETURN(const std::string ca, ReadTrustedFile(options.ca_file, /*secret=*/false));
  const auto clean = absl::MakeCleanup([] { ERR_clear_error(); });
  SSL_CTX_set_default_passwd_cb(context.get(), NoPassphrase);
  bool fits = SSL_CTX_load_verify_file(context.get(), options.ca_file.c_str()) == 1;
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, Client::LookAtCertificate);
  if (fits && !options.cert_file.empty()) {
    fits =
        SSL_CTX_use_certificate_chain_file(context.get(), options.cert_file.c_str()) == 1 &&
        SSL_CTX_use_PrivateKey_file(context.get(), options.key_file.c_str(), SSL_FILETYPE_PEM) == 1;
  }
  if (fits) return context;
  if (!options.cert_file.empty()) {
    RETURN_IF_ERROR(ReadOwnCertificate(options.cert_file, options.key_file, CertificateUse::kClient,
                                       absl::Now())
                        .status());
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the files of --tls_ca, --tls_cert and --tls_key cannot be used: check them"));
}

std::string NamesOf(const Certificate& certificate) {
  std::vector<std::string> names = certificate.dns_names;
  names.insert(names.end(), certificate.ip_addresses.begin(), certificate.ip_addresses.end());
  return names.empty() ? "no name" : absl::StrJoin(names, ", ");
}

// Explains the server's alert.
std::string AlertMeaning(int reason) {
  switch (reason) {
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
      return "it wants a certificate: give --tls_cert and --tls_key";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      return "it takes our certificate for expired: deploy/make_certificates renew; or the two "
             "clocks differ";
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      return "it does not know the CA of our certificate: both sides need the same CA";
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
      return "it does not accept our certificate: use one that its own CA has made for a worker";
    case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
      return "it speaks no TLS 1.2 or later";
    default:
      return "";
  }
}

absl::Status Explain(const std::string& address, const SecurityOptions& options, Client& client,
                     const TcpStream& connection, int error, bool server_proved) {
  const uint64_t code = ERR_peek_last_error();
  const char* const text = ERR_reason_error_string(code);
  const std::string reason = text == nullptr ? "the connection was closed" : text;
  ERR_clear_error();
  SSL* const ssl = client.ssl();
  const int64_t verified = SSL_get_verify_result(ssl);
  if (verified == X509_V_ERR_HOSTNAME_MISMATCH || verified == X509_V_ERR_IP_ADDRESS_MISMATCH) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the coordinator at ", address, " has a certificate for ", NamesOf(client.server()),
        ", not for ", options.server_name.empty() ? HostOf(address) : options.server_name,
        ": use one of these names in --coordinator, or give it as --tls_server_name"));
  }
  if (verified != X509_V_OK) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the coordinator at ", address,
        " cannot be trusted: ", X509_verify_cert_error_string(verified), " (", options.ca_file,
        "); both sides need the same CA, and a certificate that has not expired"));
  }
  const std::string meaning = error == SSL_ERROR_SSL ? AlertMeaning(ERR_GET_REASON(code)) : "";
  if (!meaning.empty()) {
    // An alert that comes sooner may be of anybody on the way.
    return absl::Status(
        server_proved ? absl::StatusCode::kPermissionDenied : absl::StatusCode::kFailedPrecondition,
        absl::StrCat("the coordinator at ", address, " refuses this worker: ", meaning));
  }
  if (error == SSL_ERROR_SSL && ERR_GET_REASON(code) == SSL_R_WRONG_VERSION_NUMBER) {
    return absl::FailedPreconditionError(
        absl::StrCat(address,
                     " does not speak TLS: start the coordinator with --tls_cert and "
                     "--tls_key, or leave --tls_ca out here"));
  }
  if (SSL_is_init_finished(ssl) && !connection.late()) {
    // gRPC's servers hang up without a word.
    const bool shown = !options.cert_file.empty();
    return absl::PermissionDeniedError(absl::StrCat(
        "the coordinator at ", address, " hangs up as soon as it has seen ",
        shown
            ? "our certificate: it has expired by the coordinator's clock, or comes from a CA that "
              "is not in the coordinator's --tls_ca"
            : "that we have no certificate: give --tls_cert and --tls_key, or start the "
              "coordinator with --token_file"));
  }
  if (connection.late()) {
    return absl::UnavailableError(absl::StrCat(address, " did not answer in time"));
  }
  return absl::UnavailableError(absl::StrCat("no TLS with ", address, ": ", reason));
}

}  // namespace

absl::StatusOr<Certificate> TryTlsHandshake(const std::string& address,
                                            const SecurityOptions& options,
                                            absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  ASSIGN_OR_RETURN(const ContextPtr context, MakeContext(options));
  ASSIGN_OR_RETURN(TcpStream connection, DialTcp(address, deadline));
  Client client(context.get(), connection);
  SSL* const ssl = client.ssl();
  const std::string name = options.server_name.empty() ? HostOf(address) : options.server_name;
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name.c_str()) != 1) {
    SSL_set1_host(ssl, name.c_str());
    SSL_set_tlsext_host_name(ssl, name.c_str());
  }
  int error = client.Run([ssl] { return SSL_do_handshake(ssl); });
  const bool server_proved = error == SSL_ERROR_NONE;
  if (server_proved) {
    // Only now does a server look at our certificate (TLS 1.3): the first byte of its HTTP/2
    // settings says that it has.
    char byte = 0;
    error = client.Run([&] { return SSL_read(ssl, &byte, 1); });
  }
  if (error != SSL_ERROR_NONE) {
    return Explain(address, options, client, connection, error, server_proved);
  }
  return client.server();
}

absl::StatusOr<std::string> FetchAuthority(const std::string& address, const std::string& sha256,
                                           absl::Duration timeout) {
  ASSIGN_OR_RETURN(const ContextPtr context, MakeContext({}));
  ASSIGN_OR_RETURN(TcpStream connection, DialTcp(address, absl::Now() + timeout));
  Client client(context.get(), connection);
  client.Run([&] { return SSL_do_handshake(client.ssl()); });
  const bool speaks_other = ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_WRONG_VERSION_NUMBER;
  ERR_clear_error();
  const STACK_OF(X509)* const chain = SSL_get_peer_cert_chain(client.ssl());
  if (chain == nullptr) {
    if (speaks_other) {
      return absl::FailedPreconditionError(
          absl::StrCat(address, " does not speak TLS: is it the coordinator of this invitation?"));
    }
    return absl::UnavailableError(absl::StrCat(
        address, connection.late() ? " did not answer in time" : " has closed the connection"));
  }
  std::string last = "none";
  for (int i = 0; i < sk_X509_num(chain); ++i) {
    std::string pem = PemOf(sk_X509_value(chain, i));
    ASSIGN_OR_RETURN(const Certificate shown, ParseCertificate(pem, "a certificate of the server"));
    if (shown.fingerprint == sha256) return pem;
    last = shown.fingerprint;
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the server at ", address,
      " is not the coordinator of this invitation: its authority has "
      "the SHA-256 ",
      last, ", the line says ", sha256,
      "; another coordinator answers there, or somebody is in between. Nothing was told to it"));
}

bool SpeaksTls(const std::string& address, absl::Duration timeout) {
  const absl::StatusOr<ContextPtr> context = MakeContext({});
  if (!context.ok()) return false;
  absl::StatusOr<TcpStream> connection = DialTcp(address, absl::Now() + timeout);
  if (!connection.ok()) return false;
  Client client(context->get(), *connection);
  client.Run([&] { return SSL_do_handshake(client.ssl()); });
  ERR_clear_error();
  // A server that wants a certificate may end the handshake, but has shown its own by then.
  return SSL_get0_peer_certificate(client.ssl()) != nullptr;
}

absl::Status ExplainByTls(const std::string& address, const SecurityOptions& options,
                          absl::Duration timeout) {
  if (options.UsesTls()) {
    const absl::Status status = TryTlsHandshake(address, options, timeout).status();
    if (absl::IsPermissionDenied(status)) return absl::FailedPreconditionError(status.message());
    return absl::IsFailedPrecondition(status) ? status : absl::OkStatus();
  }
  if (!SpeaksTls(address, timeout)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the coordinator at ", address,
                   " speaks TLS, and this worker has no "
                   "certificates: give --tls_ca and --tls_cert with --tls_key, or --token_file"));
}

}  // namespace causeway
