#include "common/identity/expiry_watch.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/identity/openssl.h"

namespace causeway {

std::string ExpiryWatch::Poll() {
  const absl::Duration now = clock_.Monotonic();
  if (file_.empty() || now < next_look_) return "";
  next_look_ = now + absl::Hours(1);
  if (now < next_warning_) return "";
  const absl::StatusOr<Certificate> certificate = ReadCertificate(file_);
  const std::string warning =
      certificate.ok()
          ? ExpiryWarning(*certificate, file_, clock_.Now(), renewal_)
          : absl::StrCat(certificate.status().message(),
                         ": until it can be read, new connections go on with the one before");
  if (!warning.empty()) next_warning_ = now + absl::Hours(24);
  return warning;
}

namespace {

constexpr size_t kHash = 8;
constexpr absl::Duration kLook = absl::Seconds(10);

}  // namespace

bool IsRevocationListName(absl::string_view name) {
  return name.size() > kHash + 2 && name.substr(kHash, 2) == ".r" &&
         absl::c_all_of(name.substr(0, kHash), absl::ascii_isxdigit) &&
         absl::c_all_of(name.substr(kHash + 2), absl::ascii_isdigit);
}

RevocationWatch::List RevocationWatch::Read(const std::string& file) {
  List list;
  list.version = FileVersion::Of(file);
  std::ifstream stream(file, std::ios::binary);
  const std::string pem{std::istreambuf_iterator<char>(stream), {}};
  const std::unique_ptr<X509_CRL, OpensslDeleter<X509_CRL_free>> crl(
      PEM_read_bio_X509_CRL(MemoryBio(pem).get(), nullptr, nullptr, nullptr));
  ERR_clear_error();  // gRPC reads this thread's queue, too.
  if (crl == nullptr) return list;
  list.is_list = true;
  list.begin = ToTime(X509_CRL_get0_lastUpdate(crl.get()), absl::InfinitePast());
  list.end = ToTime(X509_CRL_get0_nextUpdate(crl.get()), absl::InfiniteFuture());
  return list;
}

bool RevocationWatch::IsDue(const std::string& what, absl::Duration interval) {
  const absl::Duration now = clock_.Monotonic();
  const auto [next, is_new] = next_said_.try_emplace(what, now);
  if (now < next->second) return false;
  next->second = now + interval;
  return true;
}

std::vector<RevocationWatch::Notice> RevocationWatch::Poll() {
  std::vector<Notice> notices;
  if (folder_.empty() || clock_.Monotonic() < next_look_) return notices;
  next_look_ = clock_.Monotonic() + kLook;
  const auto daily = [&](const std::string& name, absl::string_view what) {
    if (!IsDue(absl::StrCat(name, what), absl::Hours(24))) return;
    notices.push_back({.message = absl::StrCat("the revocation list ", folder_, "/", name, what)});
  };
  std::map<std::string, std::string> newest;  // Names, by authority: the list that counts longest.
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (!IsRevocationListName(name)) continue;
    List& list = lists_.try_emplace(name).first->second;
    // OpenSSL takes a file once it is a list.
    if (!list.is_list) list = Read(entry.path().string());
    if (!list.is_list) {
      daily(name, " cannot be read: nobody is refused by it");
      continue;
    }
    if (FileVersion::Of(entry.path().string()) != list.version) {
      daily(name,
            " was replaced, and the former one counts: put the new one beside it under the next "
            "number (openssl rehash), or start the coordinator again");
    }
    std::string& of_authority = newest[name.substr(0, kHash)];
    if (of_authority.empty() || lists_[of_authority].end < list.end) of_authority = name;
  }
  const absl::Time now = clock_.Now();
  for (const auto& [authority, name] : newest) {
    const List& list = lists_[name];
    const std::string what = absl::StrCat(
        ": new connections with certificates of its authority are refused from then on, until a "
        "newer one is beside it under the next number (openssl rehash)");
    if (now >= list.end) {
      if (!IsDue(absl::StrCat(name, "ended"), absl::Hours(1))) continue;
      notices.push_back({.ended = true,
                         .message = absl::StrCat("the revocation list ", folder_, "/", name,
                                                 " ended at ", UtcMinute(list.end), what)});
    } else if (list.end - now <= std::min(kExpiryWarning, (list.end - list.begin) / 4)) {
      daily(name, absl::StrCat(" ends at ", UtcMinute(list.end), what));
    }
  }
  return notices;
}

}  // namespace causeway
