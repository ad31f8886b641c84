#include "common/params/draws.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace causeway {
namespace {

std::string FormatRange(const DrawRange& range) {
  return absl::StrCat(range.slot, ":", range.begin, "-", range.end);
}

absl::Status CheckDraw(const DrawRange& range) {
  if (range.slot >= kOwnData && range.begin >= 0 && range.begin < range.end &&
      range.end <= kMaxDraw) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("the draws ", FormatRange(range),
                                                 " are no range PART:BEGIN-END with ",
                                                 "PART >= -1 and 0 <= BEGIN < END <= 2^48"));
}

}  // namespace

void AddDraws(const DrawRange& range, Draws& draws) {
  if (range.begin == range.end) return;
  if (!draws.empty() && draws.back().slot == range.slot && draws.back().end == range.begin) {
    draws.back().end = range.end;
  } else {
    draws.push_back(range);
  }
}

std::string FormatDraws(const Draws& draws) {
  return absl::StrJoin(draws, " ", [](std::string* out, const DrawRange& range) {
    absl::StrAppend(out, FormatRange(range));
  });
}

absl::StatusOr<Draws> ParseDraws(absl::string_view text) {
  Draws draws;
  if (text.empty()) return draws;
  for (const absl::string_view part : absl::StrSplit(text, ' ')) {
    const std::pair<absl::string_view, absl::string_view> slot =
        absl::StrSplit(part, absl::MaxSplits(':', 1));
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(slot.second, absl::MaxSplits('-', 1));
    DrawRange range;
    if (!absl::SimpleAtoi(slot.first, &range.slot) || !absl::SimpleAtoi(ends.first, &range.begin) ||
        !absl::SimpleAtoi(ends.second, &range.end) || FormatRange(range) != part) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected draws such as 3:0-64, got \"", part.substr(0, 80), "\""));
    }
    RETURN_IF_ERROR(CheckDraw(range));
    draws.push_back(range);
  }
  return draws;
}

absl::StatusOr<Draws> DrawsFromProto(
    const google::protobuf::RepeatedPtrField<v1::DrawRange>& ranges, int slots) {
  if (ranges.size() > kMaxDrawRanges) {
    return absl::InvalidArgumentError(absl::StrCat("a delta is of at most ", kMaxDrawRanges,
                                                   " ranges of draws, not ", ranges.size()));
  }
  Draws draws = DrawsOf(ranges);
  for (const DrawRange& range : draws) {
    RETURN_IF_ERROR(CheckDraw(range));
    if (range.slot >= slots) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no part ", range.slot, " of the data: the run has ", slots));
    }
  }
  return draws;
}

Draws DrawsOf(const google::protobuf::RepeatedPtrField<v1::DrawRange>& ranges) {
  Draws draws;
  for (const v1::DrawRange& range : ranges) {
    draws.push_back({range.data_slot(), range.begin(), range.end()});
  }
  return draws;
}

void DrawsToProto(const Draws& draws, google::protobuf::RepeatedPtrField<v1::DrawRange>* ranges) {
  ranges->Clear();
  for (const DrawRange& range : draws) {
    v1::DrawRange& added = *ranges->Add();
    added.set_data_slot(range.slot);
    added.set_begin(range.begin);
    added.set_end(range.end);
  }
}

}  // namespace causeway
