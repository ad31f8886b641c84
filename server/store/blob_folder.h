// The large files of a run directory: one array file (common/files/array_file.h) per delta, answer
// and snapshot, never changed once it has its name.
//
//   deltas/000000000041-f2-r7-alice.delta        CWAYDELT  one array "object": the encoded delta
//   answers/000000000044-f2-r7.answer            CWAYANSW  one array "object": the encoded answer
//   snapshots/000000000049-f2-v7.snapshot        CWAYSNAP  fp32 "theta", "published", and one array
//                                                          per state of the outer optimizer
//
// The number in front, which the header repeats, is how many commits the database had when the
// file was written: a database that knows of fewer has lost some.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "common/files/array_file.h"
#include "nlohmann/json.hpp"
#include "server/store/store.h"

namespace causeway::server {

inline constexpr const char* kBlobFolders[] = {"deltas", "answers", "snapshots"};

// Thread-safe.
//
// A Write returns when the file is durable. RESOURCE_EXHAUSTED: the disk is full, nothing is left
// of it. After any other error the store must stop. A Read gives DATA_LOSS, with the file's name,
// if the file is damaged or is not the one that the row means.
class BlobFolder {
 public:
  BlobFolder(FileSystem& file_system, std::string run_folder)
      : file_system_(file_system), folder_(std::move(run_folder)) {}

  absl::Status CreateFolders();

  // `commits`: of the database, before the blob's own row.
  absl::StatusOr<v1::Blob> WriteDelta(const v1::Contribution& record,
                                      std::span<const uint8_t> object, int64_t commits);
  absl::StatusOr<v1::Blob> WriteAnswer(const v1::Round& record, std::span<const uint8_t> answer,
                                       int64_t commits);
  absl::StatusOr<v1::Blob> WriteSnapshot(const FragmentView& fragment, int64_t commits);

  absl::StatusOr<std::vector<uint8_t>> ReadDelta(const v1::Contribution& record);
  absl::StatusOr<std::vector<uint8_t>> ReadAnswer(const v1::Round& record);
  absl::StatusOr<FragmentSnapshot> ReadSnapshot(const v1::Snapshot& record);

  // DATA_LOSS unless it is there with its size.
  absl::Status CheckPresent(const v1::Blob& blob);
  // OK also if it is not there.
  absl::Status RemoveFile(const std::string& file);
  // The same, after the commit that no row names the file in. One that cannot be removed now is an
  // orphan, which the next opening removes: a line in the log says so.
  void Discard(const std::string& file);

  struct Entry {
    std::string file;        // "deltas/..."
    int64_t commits = -1;    // In front of its name; -1: the name is not of the form above.
    bool temporary = false;  // The name of a blob, and .tmp: was never whole.
  };
  // Files only.
  absl::StatusOr<std::vector<Entry>> List();

  // Whether that is the name of a blob, relative to the run's folder, and of nothing beyond it.
  static bool IsBlobName(absl::string_view file);

  std::string Path(const std::string& file) const { return JoinPath(folder_, file); }

 private:
  absl::StatusOr<v1::Blob> Write(const char* blob_folder, const std::string& name, int64_t commits,
                                 const ArrayFileKind& kind, nlohmann::json metadata,
                                 std::span<const NamedBytes> arrays);
  absl::StatusOr<ArrayFile> Read(const v1::Blob& blob, const ArrayFileKind& kind,
                                 const nlohmann::json& expected);
  absl::StatusOr<std::vector<uint8_t>> ReadObject(const v1::Blob& blob, const ArrayFileKind& kind,
                                                  const nlohmann::json& expected);

  FileSystem& file_system_;
  const std::string folder_;
};

}  // namespace causeway::server
