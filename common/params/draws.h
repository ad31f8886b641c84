// Which part of a run's data a delta was trained on.
//
// The data of a run are draws (worker/data/window_sampler.h): draw d of part s is one window of
// tokens, the same for everybody. A list of ranges of them says what was trained, without the
// tokens themselves ever leaving a site.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "causeway/v1/exchange.pb.h"

namespace causeway {

// The part of a worker that trains on data of its own.
inline constexpr int kOwnData = -1;

// No run draws more.
inline constexpr int64_t kMaxDraw = int64_t{1} << 48;
// Ranges of one delta. One is usual; each change of part and each late delta may add one.
inline constexpr int kMaxDrawRanges = 64;

struct DrawRange {
  int slot = 0;       // Or kOwnData.
  int64_t begin = 0;  // 0 <= begin < end.
  int64_t end = 0;

  friend bool operator==(const DrawRange&, const DrawRange&) = default;
};

// In the order in which they were trained.
using Draws = std::vector<DrawRange>;

// Appends a range, or lengthens the last one where it goes on. An empty range changes nothing.
void AddDraws(const DrawRange& range, Draws& draws);

// "3:0-64 3:128-192". Empty: "".
std::string FormatDraws(const Draws& draws);
// INVALID_ARGUMENT for anything that FormatDraws does not write.
absl::StatusOr<Draws> ParseDraws(absl::string_view text);

// `slots`: parts of the run's data. INVALID_ARGUMENT for too many ranges, a range that is empty,
// negative or beyond kMaxDraw, or a part that does not exist.
absl::StatusOr<Draws> DrawsFromProto(
    const google::protobuf::RepeatedPtrField<v1::DrawRange>& ranges, int slots);
// The same, of what was checked before.
Draws DrawsOf(const google::protobuf::RepeatedPtrField<v1::DrawRange>& ranges);
void DrawsToProto(const Draws& draws, google::protobuf::RepeatedPtrField<v1::DrawRange>* ranges);

}  // namespace causeway
