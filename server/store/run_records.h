// The keys under which run.db keeps the records of a run (record.proto), so that records of one
// kind, and of one fragment, lie together and in order.
//
//   commit, run, state                    one record each
//   member/WORKER
//   round/FRAGMENT/ROUND
//   contribution/FRAGMENT/ROUND/WORKER
//   snapshot/FRAGMENT/VERSION             numbers in 8 and 12 digits
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "causeway/v1/record.pb.h"

namespace causeway::server {

std::string RecordKey(const v1::Commit& record);
std::string RecordKey(const v1::RunIdentity& record);
std::string RecordKey(const v1::State& record);
std::string RecordKey(const v1::Member& record);
std::string RecordKey(const v1::Round& record);
std::string RecordKey(const v1::Contribution& record);
std::string RecordKey(const v1::Snapshot& record);

// The key's part before the first slash.
template <typename Record>
inline constexpr absl::string_view kKind = "";
template <>
inline constexpr absl::string_view kKind<v1::Commit> = "commit";
template <>
inline constexpr absl::string_view kKind<v1::RunIdentity> = "run";
template <>
inline constexpr absl::string_view kKind<v1::State> = "state";
template <>
inline constexpr absl::string_view kKind<v1::Member> = "member";
template <>
inline constexpr absl::string_view kKind<v1::Round> = "round";
template <>
inline constexpr absl::string_view kKind<v1::Contribution> = "contribution";
template <>
inline constexpr absl::string_view kKind<v1::Snapshot> = "snapshot";
absl::string_view KindOf(absl::string_view key);
// Of the key of a round, contribution or snapshot.
int FragmentOf(absl::string_view key);

// Keys from `begin` on and before `end`.
struct KeyRange {
  std::string begin;
  std::string end;
};
template <typename Record>
KeyRange AllOf() {
  return {std::string(kKind<Record>), absl::StrCat(kKind<Record>, "0")};  // '0' follows '/'.
}
// Of a fragment, rounds or versions `first` to `last`.
KeyRange RangeOf(absl::string_view kind, int fragment, int64_t first, int64_t last);
template <typename Record>
KeyRange RangeOf(int fragment, int64_t first, int64_t last) {
  return RangeOf(kKind<Record>, fragment, first, last);
}

// XXH3-64 over the key, a zero byte and the value.
uint64_t RecordChecksum(absl::string_view key, absl::string_view value);

// INVALID_ARGUMENT unless the value is a Record of that key.
template <typename Record>
absl::StatusOr<Record> ParseRecord(absl::string_view key, absl::string_view value) {
  Record record;
  if (record.ParseFromArray(value.data(), static_cast<int>(value.size())) &&
      RecordKey(record) == key) {
    return record;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("what is under the key ", key, " is no record of that key"));
}

}  // namespace causeway::server
