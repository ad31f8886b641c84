#include "worker/member/merge_record.h"

#include "absl/strings/str_split.h"
#include "common/files/json.h"
#include "common/telemetry/log.h"

namespace causeway::worker {
namespace {

using nlohmann::json;

bool ReadMerge(absl::string_view line, RecordedMerge& merge) {
  const json entry = json::parse(line.begin(), line.end(), nullptr, false);
  if (!entry.is_object()) return false;
  const auto read = [&](const char* field, auto& out) {
    return entry.contains(field) && ReadInteger(entry.at(field), out) && out >= 0;
  };
  return read("step", merge.step) && read("fragment", merge.event.fragment) &&
         read("round", merge.event.round);
}

}  // namespace

absl::StatusOr<std::vector<RecordedMerge>> ReadMergeRecord(FileSystem& file_system,
                                                           const std::string& path,
                                                           bool may_be_absent) {
  std::vector<RecordedMerge> merges;
  if (may_be_absent && !file_system.Exists(path)) return merges;
  ASSIGN_OR_RETURN(const std::string text, file_system.ReadFile(path));
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    RecordedMerge merge;
    if (ReadMerge(lines[i], merge)) {
      merges.push_back(merge);
    } else if (i + 1 < lines.size()) {
      return absl::DataLossError(
          absl::StrCat(path, ":", i + 1,
                       " is no merge (expected {\"step\": .., \"fragment\": .., \"round\": ..}); ",
                       "take another copy"));
    }
  }
  return merges;
}

absl::StatusOr<std::unique_ptr<MergeRecord>> MergeRecord::Open(FileSystem& file_system,
                                                               const std::string& path, bool anew) {
  auto record = std::make_unique<MergeRecord>();
  std::string kept;
  if (!anew) {
    ASSIGN_OR_RETURN(record->merges_, ReadMergeRecord(file_system, path, /*may_be_absent=*/true));
  }
  for (const RecordedMerge& merge : record->merges_) {
    record->rounds_.insert({merge.event.fragment, merge.event.round});
    absl::StrAppend(&kept, "{\"fragment\":", merge.event.fragment, ",\"round\":", merge.event.round,
                    ",\"step\":", merge.step, "}\n");
  }
  RETURN_IF_ERROR(WriteFileAtomically(file_system, path, absl::string_view(kept)));
  ASSIGN_OR_RETURN(record->file_, JsonLinesFile::Continue(file_system, path));
  return record;
}

absl::Status MergeRecord::Add(const RecordedMerge& merge) {
  if (!rounds_.insert({merge.event.fragment, merge.event.round}).second) return absl::OkStatus();
  return file_->Append(
      {{"step", merge.step}, {"fragment", merge.event.fragment}, {"round", merge.event.round}});
}

void MergeRecord::Note(const RecordedMerge& merge) {
  const bool was_noted = std::exchange(noted_, Add(merge)).ok();
  if (noted_.ok() || !was_noted) return;
  Log().warn("merges are not recorded ({}): should this worker be killed, it will not repeat them",
             std::string(noted_.message()));
}

}  // namespace causeway::worker
