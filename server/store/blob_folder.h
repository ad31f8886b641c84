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
//
// Deltas may be in a folder in memory, too (server/standby): the file DELTAS_IN names it. A delta
// is then in either place, or in both.
#ifndef CAUSEWAY_SERVER_STORE_BLOB_FOLDER_H_
#define CAUSEWAY_SERVER_STORE_BLOB_FOLDER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/file_system.h"
#include "common/files/array_file.h"
#include "nlohmann/json.hpp"
#include "server/store/run_tables.h"
#include "server/store/store.h"

namespace causeway::server {

inline constexpr const char* kBlobFolders[] = {"deltas", "answers", "snapshots"};

// Names the folder in memory that this run's deltas may be in; one line.
inline constexpr char kDeltasInFile[] = "DELTAS_IN";

// Thread-safe, once FindMemory or UseMemory has returned.
//
// A Write returns when the file is durable. RESOURCE_EXHAUSTED: the disk is full, also without the
// spares, nothing is left of it. After any other error the store must stop. A Read gives DATA_LOSS,
// with the file's name, if the file is damaged or is not the one that the row means.
class BlobFolder {
 public:
  BlobFolder(FileSystem& file_system, std::string run_folder)
      : file_system_(file_system), folder_(std::move(run_folder)) {}

  absl::Status CreateFolders();

  // --- Deltas in memory ---
  // Reads where they may be. Before anything else is asked.
  absl::Status FindMemory();
  // They may be in that folder, which is made, from now on, and also after a new start.
  absl::Status UseMemory(const std::string& folder);
  // Where they may be; empty: on the disk alone.
  const std::string& memory() const { return memory_; }
  // Whether new ones go there, as long as it has room. At first they do not.
  void set_new_in_memory(bool in_memory) { new_in_memory_ = in_memory; }
  bool new_in_memory() const { return new_in_memory_; }
  // Copies deltas that are only in memory to the disk, durably, until that were `most_bytes` or
  // more, or a blob is being written, which goes before. Whether all are there now, those that
  // WriteDelta had begun included. They stay in memory, too.
  absl::StatusOr<bool> CopyToDisk(int64_t most_bytes);
  // Forgets the memory, and removes what is there. What only it has is lost: copy it before.
  absl::Status DropMemory();
  // Left free on the disk by CopyToDisk, which is RESOURCE_EXHAUSTED otherwise.
  void set_spare_bytes(uint64_t bytes) { spare_bytes_ = bytes; }

  // `commits`: of the database, before the blob's own row.
  absl::StatusOr<BlobRef> WriteDelta(const ContributionRecord& record,
                                     std::span<const uint8_t> object, int64_t commits);
  absl::StatusOr<BlobRef> WriteAnswer(const RoundRecord& record, std::span<const uint8_t> answer,
                                      int64_t commits);
  absl::StatusOr<BlobRef> WriteSnapshot(const FragmentView& fragment, int64_t commits);

  absl::StatusOr<std::vector<uint8_t>> ReadDelta(const StoredContribution& row);
  absl::StatusOr<std::vector<uint8_t>> ReadAnswer(const StoredRound& row);
  absl::StatusOr<FragmentSnapshot> ReadSnapshot(const StoredSnapshot& row);

  // DATA_LOSS unless it is there with its size.
  absl::Status CheckPresent(const BlobRef& blob);
  // The commit that no row names the blob in is durable. A file that cannot be removed now is an
  // orphan, which the next opening removes. A large one stays for a while, under a name that ends
  // with .tmp: the next blob is written over it, because finding new pages or blocks takes longer
  // than to fill them. Whoever reads a file without a lock asks afterwards if it is still there.
  void Remove(const BlobRef& blob);
  // OK also if it is not there.
  absl::Status RemoveFile(const std::string& file);
  // The same, with a line in the log where that fails.
  void Discard(const std::string& file);
  // Frees the disk of what stays so. False: there was nothing.
  bool DropSpares();
  // Whether a blob is being written.
  bool writing() const { return writing_ > 0; }

  struct Entry {
    std::string file;        // "deltas/..."
    int64_t commits = -1;    // In front of its name; -1: the name is not of the form above.
    bool temporary = false;  // The name of a blob, and .tmp: was never whole.
  };
  // Files only.
  absl::StatusOr<std::vector<Entry>> List();

  // Whether that is the name of a blob, relative to the run's folder, and of nothing beyond it.
  static bool IsBlobName(absl::string_view file);

  // Where a blob is, and where a new one of so many bytes is to be written.
  std::string Path(const std::string& file) const;
  std::string NewPath(const std::string& file, int64_t bytes);

 private:
  absl::StatusOr<BlobRef> Write(const char* blob_folder, const std::string& name,
                                const ArrayFileKind& kind, const nlohmann::json& metadata,
                                std::span<const NamedBytes> arrays);
  absl::StatusOr<ArrayFile> Read(const BlobRef& blob, const ArrayFileKind& kind,
                                 const nlohmann::json& expected);
  absl::StatusOr<std::vector<uint8_t>> ReadObject(const BlobRef& blob, const ArrayFileKind& kind,
                                                  const nlohmann::json& expected);

  absl::Status WriteAt(const std::string& path, const BlobRef& blob, const ArrayFileKind& kind,
                       const nlohmann::json& metadata, std::span<const NamedBytes> arrays);
  // Where it is, and its size: again if it went to the disk, or from there, meanwhile.
  absl::StatusOr<uint64_t> Find(const BlobRef& blob, std::string& path);
  // The file on the disk to write: a spare of `bytes` or somewhat less, or a new one.
  absl::StatusOr<std::unique_ptr<WritableFile>> Open(const std::string& path, int64_t bytes);
  std::string OnDisk(const std::string& file) const { return JoinPath(folder_, file); }
  std::string InMemory(const std::string& file) const { return JoinPath(memory_, file); }
  bool MayBeInMemory(absl::string_view file) const;
  absl::Status ListFolder(const std::string& root, const char* folder, std::set<std::string>& seen,
                          std::vector<Entry>& entries);

  FileSystem& file_system_;
  const std::string folder_;
  std::string memory_;
  std::atomic<uint64_t> spare_bytes_ = 0;
  std::atomic<bool> new_in_memory_ = false;
  std::atomic<int> writing_ = 0;  // Calls of Write.
  std::atomic<bool> said_full_ = false;
  absl::Mutex mutex_;
  std::deque<BlobRef> spares_ ABSL_GUARDED_BY(mutex_);  // The oldest first; on the disk.
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STORE_BLOB_FOLDER_H_
