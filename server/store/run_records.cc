#include "server/store/run_records.h"

#include "absl/strings/str_format.h"
#include "common/base/checksum.h"

namespace causeway::server {
namespace {

std::string NumberedKey(absl::string_view kind, int fragment, int64_t number) {
  return absl::StrFormat("%s/%08d/%012d", kind, fragment, number);
}

}  // namespace

std::string RecordKey(const v1::Commit&) { return std::string(kKind<v1::Commit>); }
std::string RecordKey(const v1::RunIdentity&) { return std::string(kKind<v1::RunIdentity>); }
std::string RecordKey(const v1::State&) { return std::string(kKind<v1::State>); }
std::string RecordKey(const v1::Member& record) {
  return absl::StrCat(kKind<v1::Member>, "/", record.worker_id());
}
std::string RecordKey(const v1::Round& record) {
  return NumberedKey(kKind<v1::Round>, record.fragment(), record.round());
}
std::string RecordKey(const v1::Contribution& record) {
  const v1::PushHeader& header = record.header();
  return absl::StrCat(NumberedKey(kKind<v1::Contribution>, header.fragment(), header.round()), "/",
                      header.worker_id());
}
std::string RecordKey(const v1::Snapshot& record) {
  return NumberedKey(kKind<v1::Snapshot>, record.fragment(), record.version());
}

absl::string_view KindOf(absl::string_view key) { return key.substr(0, key.find('/')); }

int FragmentOf(absl::string_view key) {
  int fragment = 0;
  const absl::string_view after = key.substr(KindOf(key).size() + 1);
  return absl::SimpleAtoi(KindOf(after), &fragment) ? fragment : -1;
}

KeyRange RangeOf(absl::string_view kind, int fragment, int64_t first, int64_t last) {
  return {NumberedKey(kind, fragment, first), NumberedKey(kind, fragment, last + 1)};
}

uint64_t RecordChecksum(absl::string_view key, absl::string_view value) {
  return Checksum64(absl::StrCat(key, absl::string_view("\0", 1), value));
}

}  // namespace causeway::server
