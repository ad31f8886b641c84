#include "common/identity/invitation.h"

#include <fcntl.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/identity/openssl.h"
#include "common/params/run_config.h"

namespace causeway {
namespace {

constexpr size_t kCheckBytes = 3;
constexpr size_t kMostCharacters = 2048;
constexpr size_t kMostAddresses = 16;

std::string Sha256(absl::string_view text) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const uint8_t*>(text.data()), text.size(),
         reinterpret_cast<uint8_t*>(digest.data()));
  return digest;
}

// The line up to its secret.
std::string Open(const InvitationLine& line) {
  return absl::StrCat(kIdentityScheme, absl::StrJoin(line.addresses, ","), "/", line.run, "/",
                      line.name, "/", absl::WebSafeBase64Escape(absl::HexStringToBytes(line.pin)),
                      ".");
}

std::string CheckOf(const InvitationLine& line) {
  return Sha256(absl::StrCat(Open(line), line.secret)).substr(0, kCheckBytes);
}

absl::Status NotALine(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("not a whole invitation: ", what,
                   "; expected the line of `causewayctl invite` as it was printed, "
                   "causeway://HOST:PORT/RUN/NAME/PIN.SECRET"));
}

}  // namespace

std::string FormatInvitation(InvitationLine line) {
  line.addresses.resize(std::min(line.addresses.size(), kMostAddresses));
  return absl::StrCat(Open(line), absl::WebSafeBase64Escape(line.secret + CheckOf(line)));
}

bool LooksLikeInvitation(absl::string_view text) {
  return absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), kIdentityScheme);
}

absl::StatusOr<InvitationLine> ParseInvitation(absl::string_view text) {
  absl::string_view rest = absl::StripAsciiWhitespace(text);
  if (!absl::ConsumePrefix(&rest, kIdentityScheme)) {
    return NotALine(absl::StrCat("it does not begin with ", kIdentityScheme));
  }
  if (rest.size() > kMostCharacters) {
    return NotALine(absl::StrCat("it has ", rest.size(), " characters"));
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(rest, '/');
  if (parts.size() != 4) {
    return NotALine(absl::StrCat("it has ", parts.size(), " parts between slashes, not 4"));
  }
  InvitationLine line;
  line.addresses = absl::StrSplit(parts[0], ',');
  if (line.addresses.size() > kMostAddresses) {
    return NotALine(absl::StrCat("it has ", line.addresses.size(), " addresses"));
  }
  for (const std::string& address : line.addresses) {
    const absl::Status usable = CheckAddress(address, /*allow_any_port=*/false);
    if (!usable.ok()) return NotALine(usable.message());
  }
  line.run = std::string(parts[1]);
  line.name = std::string(parts[2]);
  for (const auto& [what, name] :
       {std::pair("its run", line.run), std::pair("its name", line.name)}) {
    const absl::Status usable = CheckName(what, name);
    if (!usable.ok()) return NotALine(usable.message());
  }
  const std::vector<absl::string_view> ends = absl::StrSplit(parts[3], '.');
  std::string pin, secret;
  if (ends.size() != 2 || !absl::WebSafeBase64Unescape(ends[0], &pin) ||
      pin.size() != SHA256_DIGEST_LENGTH) {
    return NotALine("the authority's fingerprint is cut or changed");
  }
  if (!absl::WebSafeBase64Unescape(ends[1], &secret) ||
      secret.size() != kInvitationSecretBytes + kCheckBytes) {
    return NotALine(
        absl::StrCat("its last part is cut or changed: it has ", ends[1].size(), " characters"));
  }
  line.pin = absl::BytesToHexString(pin);
  line.secret = secret.substr(0, kInvitationSecretBytes);
  if (CheckOf(line) != secret.substr(kInvitationSecretBytes)) {
    return NotALine("a character of it was changed");
  }
  return line;
}

absl::StatusOr<std::string> MakeInvitationSecret() {
  std::string secret(kInvitationSecretBytes, '\0');
  if (RAND_bytes(reinterpret_cast<uint8_t*>(secret.data()), static_cast<int>(secret.size())) == 1) {
    return secret;
  }
  return absl::InternalError("OpenSSL gives no random bytes");
}

std::string ShortDigest(absl::string_view secret) {
  return absl::BytesToHexString(Sha256(absl::StrCat("known again ", secret)).substr(0, 8));
}

absl::StatusOr<KeyedCertificate> CertificateOfInvitation(const std::string& secret,
                                                         const std::string& name) {
  return CertificateOfSecret(
      secret, "causeway invitation",
      absl::StrCat("URI:", IdentityUri({.run = kEveryRun, .role = Role::kInvited, .name = name})));
}

absl::StatusOr<std::string> CheckInvitationCertificate(absl::string_view pem,
                                                       const std::string& name) {
  constexpr size_t kMostBytes = 4096;
  const Identity invited{.run = kEveryRun, .role = Role::kInvited, .name = name};
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("the certificate of an invitation ", what, ": expected the one that ",
                     "`causewayctl invite` makes, of ", IdentityUri(invited)));
  };
  if (pem.size() > kMostBytes) return wrong("is too long");
  ASSIGN_OR_RETURN(const Certificate parsed,
                   ParseCertificate(pem, "the certificate of an invitation"));
  if (parsed.identity != invited || parsed.uris.size() != 1) return wrong("names somebody else");
  const X509Ptr x509(PEM_read_bio_X509(MemoryBio(pem).get(), nullptr, NoPassphrase, nullptr));
  const bool fits = x509 != nullptr && X509_check_ca(x509.get()) == 0 &&
                    X509_self_signed(x509.get(), /*verify_signature=*/1) == 1 &&
                    EVP_PKEY_get_id(X509_get0_pubkey(x509.get())) == EVP_PKEY_ED25519;
  ERR_clear_error();
  // Nothing else of the text: it would be trusted, too.
  return fits ? absl::StatusOr<std::string>(PemOf(x509.get())) : wrong("is of another kind");
}

namespace {

absl::Status SystemError(absl::string_view what, const std::string& path) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::string> DefaultIdentityFolder(absl::string_view run, absl::string_view name) {
  const char* const config = std::getenv("XDG_CONFIG_HOME");
  const char* const home = std::getenv("HOME");
  std::string root;
  if (config != nullptr && config[0] == '/') {
    root = config;
  } else if (home != nullptr && home[0] == '/') {
    root = JoinPath(home, ".config");
  } else {
    return absl::FailedPreconditionError(
        "neither HOME nor XDG_CONFIG_HOME says where keys may be kept: give --identity=FOLDER");
  }
  return JoinPath(JoinPath(JoinPath(root, "causeway"), run), name);
}

absl::Status CreatePrivateFolder(FileSystem& file_system, const std::string& folder) {
  struct stat info {};
  if (stat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    if ((info.st_mode & (S_IRWXG | S_IRWXO)) == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(folder, " is open to others, and a key is to be kept there: chmod 700 ",
                     folder, ", or give a folder of its own"));
  }
  if (!file_system.IsFolder(ParentFolder(folder))) {
    RETURN_IF_ERROR(CreateFoldersDurably(file_system, ParentFolder(ParentFolder(folder))));
    if (mkdir(ParentFolder(folder).c_str(), 0700) != 0 && errno != EEXIST) {
      return SystemError("create", ParentFolder(folder));
    }
  }
  if (mkdir(folder.c_str(), 0700) != 0) {
    // Another process may have been faster.
    const bool is_there = errno == EEXIST && file_system.IsFolder(folder);
    return is_there ? CreatePrivateFolder(file_system, folder) : SystemError("create", folder);
  }
  return file_system.SyncFolder(ParentFolder(folder));
}

absl::Status WritePrivateFile(FileSystem& file_system, const std::string& path,
                              absl::string_view text) {
  // The file that WriteFileAtomically fills and renames: nobody else can open it meanwhile.
  const std::string temporary = absl::StrCat(path, ".tmp");
  unlink(temporary.c_str());
  const int made = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (made < 0) return SystemError("create", temporary);
  close(made);
  return WriteFileAtomically(file_system, path, text);
}

}  // namespace causeway
