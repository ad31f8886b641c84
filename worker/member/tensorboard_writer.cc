#include "worker/member/tensorboard_writer.h"

#include <isa-l/crc.h>

#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway::worker {
namespace {

constexpr char kFileVersion[] = "brain.Event:2";
constexpr uint32_t kMaskDelta = 0xa282ead8;

uint32_t MaskedCrc(absl::string_view bytes) {
  const uint32_t crc =
      Crc32c(std::span(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
  return std::rotr(crc, 15) + kMaskDelta;
}

template <typename T>
void AppendLittleEndian(T value, std::string& out) {
  for (size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

}  // namespace

uint32_t Crc32c(std::span<const uint8_t> bytes) {
  // ISA-L reads only, whatever its parameter says; it leaves both inversions to the caller.
  return ~crc32_iscsi(const_cast<uint8_t*>(bytes.data()), static_cast<int>(bytes.size()), ~0U);
}

std::string TensorBoardRecord(absl::string_view data) {
  std::string record;
  AppendLittleEndian(uint64_t{data.size()}, record);
  AppendLittleEndian(MaskedCrc(record), record);
  absl::StrAppend(&record, data);
  AppendLittleEndian(MaskedCrc(data), record);
  return record;
}

absl::StatusOr<std::unique_ptr<TensorBoardWriter>> TensorBoardWriter::Create(
    FileSystem& file_system, const std::string& folder, const std::string& worker_id,
    int64_t first_step, const Clock& clock) {
  RETURN_IF_ERROR(file_system.CreateFolders(folder));
  const std::string name =
      absl::StrCat("events.out.tfevents.", absl::ToUnixSeconds(clock.Now()), ".", worker_id);
  std::string path = JoinPath(folder, name);
  for (int i = 1; file_system.Exists(path); ++i) {
    path = JoinPath(folder, absl::StrCat(name, ".", i));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, file_system.Create(path));
  std::unique_ptr<TensorBoardWriter> writer(
      new TensorBoardWriter(std::move(file), std::move(path), clock));
  tensorboard::Event version;
  version.set_file_version(kFileVersion);
  RETURN_IF_ERROR(writer->Write(std::move(version)));
  tensorboard::Event start;
  start.set_step(first_step);
  start.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  RETURN_IF_ERROR(writer->Write(std::move(start)));
  return writer;
}

absl::Status TensorBoardWriter::Add(int64_t step, const Scalars& scalars) {
  tensorboard::Event event;
  event.set_step(step);
  for (const auto& [tag, scalar] : scalars) {
    if (!std::isfinite(scalar)) continue;
    tensorboard::Summary::Value& value = *event.mutable_summary()->add_value();
    value.set_tag(tag);
    value.set_simple_value(static_cast<float>(scalar));
  }
  return Write(std::move(event));
}

absl::Status TensorBoardWriter::Write(tensorboard::Event event) {
  event.set_wall_time(absl::ToDoubleSeconds(clock_.Now() - absl::UnixEpoch()));
  const std::string record = TensorBoardRecord(event.SerializeAsString());
  return file_->Append(std::span(reinterpret_cast<const uint8_t*>(record.data()), record.size()));
}

}  // namespace causeway::worker
