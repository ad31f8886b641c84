#include "server/store/blob_folder.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/checksum.h"
#include "common/base/crash_point.h"
#include "common/params/run_config.h"
#include "common/telemetry/log.h"

namespace causeway::server {
namespace {

using nlohmann::json;

constexpr ArrayFileKind kDelta = {'C', 'W', 'A', 'Y', 'D', 'E', 'L', 'T'};
constexpr ArrayFileKind kAnswer = {'C', 'W', 'A', 'Y', 'A', 'N', 'S', 'W'};
constexpr ArrayFileKind kSnapshot = {'C', 'W', 'A', 'Y', 'S', 'N', 'A', 'P'};
constexpr uint32_t kVersion = 1;
constexpr char kObject[] = "object";
constexpr size_t kCommitDigits = 12;
constexpr char kDeltas[] = "deltas";

json DeltaMetadata(const v1::PushHeader& header) {
  return {{"fragment", header.fragment()},
          {"round", header.round()},
          {"worker_id", header.worker_id()},
          {"codec", v1::Codec_Name(header.codec())},
          {"object_hash", HashToHex(header.object_hash())}};
}

json AnswerMetadata(const v1::Round& record) {
  return {{"fragment", record.fragment()},
          {"round", record.round()},
          {"answer_hash", HashToHex(record.answer_hash())}};
}

json SnapshotMetadata(int fragment, int64_t version, uint64_t published_hash) {
  return {
      {"fragment", fragment}, {"version", version}, {"published_hash", HashToHex(published_hash)}};
}

bool ConsumeNumber(absl::string_view& text, int64_t& number) {
  size_t digits = 0;
  while (digits < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[digits]))) {
    ++digits;
  }
  if (!absl::SimpleAtoi(text.substr(0, digits), &number)) return false;
  text.remove_prefix(digits);
  return true;
}

// The number in front of a blob's name; -1 if it is not the name of a blob of that folder.
int64_t CommitsOfName(absl::string_view folder, absl::string_view name) {
  int64_t commits = 0;
  int64_t ignored = 0;
  const bool snapshot = folder == "snapshots";
  const size_t before = name.size();
  if (!ConsumeNumber(name, commits) || before - name.size() < kCommitDigits ||
      !absl::ConsumePrefix(&name, "-f") || !ConsumeNumber(name, ignored) ||
      !absl::ConsumePrefix(&name, snapshot ? "-v" : "-r") || !ConsumeNumber(name, ignored)) {
    return -1;
  }
  if (snapshot) return name == ".snapshot" ? commits : -1;
  if (folder == "answers") return name == ".answer" ? commits : -1;
  const bool delta = absl::ConsumeSuffix(&name, ".delta") && absl::ConsumePrefix(&name, "-");
  return delta && !name.empty() ? commits : -1;
}

// A failed sync leaves unknown what is on the disk: never an error that may be tried again.
absl::Status SyncFailure(const absl::Status& status) {
  if (status.code() != absl::StatusCode::kResourceExhausted) return status;
  return absl::InternalError(status.message());
}

template <typename... What>
absl::Status Damaged(const What&... what) {
  return absl::DataLossError(absl::StrCat(what..., "; see Repair in docs/formats.md"));
}

absl::StatusOr<FloatBuffer> Floats(const NamedBytes& array, const std::string& path) {
  if (array.bytes.size() % sizeof(float) != 0) {
    return Damaged(path, ": array ", array.name, " is not of fp32");
  }
  FloatBuffer values(array.bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), array.bytes.data(), array.bytes.size());
  return values;
}

}  // namespace

absl::Status BlobFolder::CreateFolders() {
  for (const char* name : kBlobFolders) {
    RETURN_IF_ERROR(file_system_.CreateFolders(Path(name)));
  }
  return file_system_.SyncFolder(folder_);
}

absl::StatusOr<v1::Blob> BlobFolder::Write(const char* blob_folder, const std::string& name,
                                           int64_t commits, const ArrayFileKind& kind,
                                           json metadata, std::span<const NamedBytes> arrays) {
  metadata["commits"] = commits;
  v1::Blob blob;
  blob.set_file(JoinPath(blob_folder, absl::StrFormat("%0*d-%s", kCommitDigits, commits, name)));
  blob.set_bytes(static_cast<int64_t>(ArrayFileBytes(metadata, arrays)));
  const std::string path = Path(blob.file());
  const std::string temporary = path + ".tmp";
  const absl::Status written = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, file_system_.Create(temporary));
    RETURN_IF_ERROR(WriteArrays(*file, kind, kVersion, metadata, arrays));
    CrashPoint("before_blob_sync");
    RETURN_IF_ERROR(SyncFailure(file->Sync()));
    CrashPoint("after_blob_sync");
    return file_system_.Rename(temporary, path);
  }();
  if (!written.ok()) {
    if (file_system_.Exists(temporary)) file_system_.Remove(temporary).IgnoreError();
    return written;
  }
  CrashPoint("after_blob_rename");
  RETURN_IF_ERROR(SyncFailure(file_system_.SyncFolder(ParentFolder(path))));
  return blob;
}

absl::StatusOr<v1::Blob> BlobFolder::WriteDelta(const v1::Contribution& record,
                                                std::span<const uint8_t> object, int64_t commits) {
  const v1::PushHeader& header = record.header();
  RETURN_IF_ERROR(CheckName("worker id", header.worker_id()));  // It becomes part of a file's name.
  const NamedBytes array = {kObject, object};
  return Write(
      kDeltas,
      absl::StrCat("f", header.fragment(), "-r", header.round(), "-", header.worker_id(), ".delta"),
      commits, kDelta, DeltaMetadata(header), {&array, 1});
}

absl::StatusOr<v1::Blob> BlobFolder::WriteAnswer(const v1::Round& record,
                                                 std::span<const uint8_t> answer, int64_t commits) {
  const NamedBytes array = {kObject, answer};
  return Write("answers", absl::StrCat("f", record.fragment(), "-r", record.round(), ".answer"),
               commits, kAnswer, AnswerMetadata(record), {&array, 1});
}

absl::StatusOr<v1::Blob> BlobFolder::WriteSnapshot(const FragmentView& fragment, int64_t commits) {
  std::vector<NamedBytes> arrays = {NameBytes("theta", fragment.theta),
                                    NameBytes("published", fragment.published)};
  for (const auto& [name, values] : fragment.optimizer) arrays.push_back(NameBytes(name, values));
  return Write(
      "snapshots", absl::StrCat("f", fragment.fragment, "-v", fragment.version, ".snapshot"),
      commits, kSnapshot,
      SnapshotMetadata(fragment.fragment, fragment.version, fragment.published_hash), arrays);
}

absl::StatusOr<ArrayFile> BlobFolder::Read(const v1::Blob& blob, const ArrayFileKind& kind,
                                           const json& expected) {
  const std::string path = Path(blob.file());
  absl::StatusOr<ArrayFile> file = ArrayFile::ReadIntoMemory(file_system_, path, kind, kVersion);
  if (!file.ok()) {
    const absl::StatusCode code = file.status().code();
    // Where it is missing: the row says that it is there.
    if (code != absl::StatusCode::kNotFound && code != absl::StatusCode::kDataLoss) {
      return file.status();
    }
    return Damaged(file.status().message());
  }
  const json& metadata = file->metadata();
  for (const auto& [key, value] : expected.items()) {
    if (metadata.is_object() && metadata.value(key, json()) == value) continue;
    return Damaged(path, " is another blob than the one of its name: its ", key, " is not ",
                   value.dump());
  }
  return file;
}

absl::StatusOr<std::vector<uint8_t>> BlobFolder::ReadObject(const v1::Blob& blob,
                                                            const ArrayFileKind& kind,
                                                            const json& expected) {
  ASSIGN_OR_RETURN(const ArrayFile file, Read(blob, kind, expected));
  const NamedBytes* const object = file.Find(kObject);
  if (object == nullptr) {
    return Damaged(Path(blob.file()), " has no array ", kObject);
  }
  return std::vector<uint8_t>(object->bytes.begin(), object->bytes.end());
}

absl::StatusOr<std::vector<uint8_t>> BlobFolder::ReadDelta(const v1::Contribution& record) {
  return ReadObject(record.delta(), kDelta, DeltaMetadata(record.header()));
}

absl::StatusOr<std::vector<uint8_t>> BlobFolder::ReadAnswer(const v1::Round& record) {
  return ReadObject(record.answer(), kAnswer, AnswerMetadata(record));
}

absl::StatusOr<FragmentSnapshot> BlobFolder::ReadSnapshot(const v1::Snapshot& record) {
  ASSIGN_OR_RETURN(const ArrayFile file, Read(record.state(), kSnapshot,
                                              SnapshotMetadata(record.fragment(), record.version(),
                                                               record.published_hash())));
  const std::string path = Path(record.state().file());
  FragmentSnapshot snapshot;
  snapshot.fragment = record.fragment();
  snapshot.version = record.version();
  snapshot.published_hash = record.published_hash();
  const std::vector<NamedBytes>& arrays = file.arrays();
  if (arrays.size() < 2 || arrays[0].name != "theta" || arrays[1].name != "published" ||
      arrays[0].bytes.size() != arrays[1].bytes.size()) {
    return Damaged(path, " does not begin with theta and published of one size");
  }
  ASSIGN_OR_RETURN(snapshot.theta, Floats(arrays[0], path));
  ASSIGN_OR_RETURN(snapshot.published, Floats(arrays[1], path));
  for (size_t i = 2; i < arrays.size(); ++i) {
    ASSIGN_OR_RETURN(FloatBuffer values, Floats(arrays[i], path));
    snapshot.optimizer.emplace_back(arrays[i].name, std::move(values));
  }
  return snapshot;
}

absl::Status BlobFolder::CheckPresent(const v1::Blob& blob) {
  const std::string path = Path(blob.file());
  const absl::StatusOr<uint64_t> bytes = file_system_.FileSize(path);
  if (absl::IsNotFound(bytes.status())) {
    return Damaged(path, " is missing: the database says that it has ", blob.bytes(), " bytes");
  }
  RETURN_IF_ERROR(bytes.status());
  if (*bytes == static_cast<uint64_t>(blob.bytes())) return absl::OkStatus();
  return Damaged(path, " is damaged: it ends at offset ", *bytes,
                 "; the database says that it has ", blob.bytes(), " bytes");
}

bool BlobFolder::IsBlobName(absl::string_view file) {
  for (const absl::string_view folder : kBlobFolders) {
    absl::string_view name = file;
    if (!absl::ConsumePrefix(&name, folder) || !absl::ConsumePrefix(&name, "/")) continue;
    return !absl::StrContains(name, '/') && CommitsOfName(folder, name) >= 0;
  }
  return false;
}

void BlobFolder::Discard(const std::string& file) {
  const absl::Status status = RemoveFile(file);
  if (!status.ok()) Log().warn("{}", std::string(status.message()));
}

absl::Status BlobFolder::RemoveFile(const std::string& file) {
  const absl::Status removed = file_system_.Remove(Path(file));
  return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
}

absl::StatusOr<std::vector<BlobFolder::Entry>> BlobFolder::List() {
  std::vector<Entry> entries;
  for (const char* folder : kBlobFolders) {
    const std::string path = Path(folder);
    if (!file_system_.IsFolder(path)) continue;
    ASSIGN_OR_RETURN(const std::vector<std::string> names, file_system_.List(path));
    for (const std::string& name : names) {
      if (file_system_.IsFolder(JoinPath(path, name))) continue;
      Entry& entry = entries.emplace_back();
      entry.file = JoinPath(folder, name);
      absl::string_view whole = name;
      const bool temporary = absl::ConsumeSuffix(&whole, ".tmp");
      entry.commits = CommitsOfName(folder, whole);
      entry.temporary = temporary && entry.commits >= 0;
    }
  }
  return entries;
}

}  // namespace causeway::server
