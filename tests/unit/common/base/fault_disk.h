// A disk in memory that fails when it is told to and forgets what was not synced.
//
//   FaultDisk disk;
//   disk.FailCall(17, FaultDisk::Fault::kInputOutput);   // The 18th call from now fails.
//   ... use it as a FileSystem, or through fault_disk_vfs.h as SQLite's ...
//   disk.Crash(FaultDisk::Loss::kEverythingUnsynced, 0);  // The power fails; all files are closed.
//
// A power loss leaves the least that POSIX allows: the content of a file as of its last sync, and
// the names in a folder, of files and of folders, as of the folder's last sync. A folder that is
// lost takes all that is below it along. A sync that fails loses what it should have synced, also
// for later syncs that succeed, as Linux does it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/base/file_system.h"

namespace causeway {

// Thread-safe.
class FaultDisk final : public FileSystem {
 public:
  // kInputOutput: EIO. kDiskFull: ENOSPC, which only calls that need space give; others succeed.
  // A write that fails has written half of its bytes.
  enum class Fault { kInputOutput, kDiskFull };
  // The losses of a crash. kNothing: only the process died. kEverythingUnsynced: the power failed
  // at once. kSomeUnsynced: of each write since the last sync, any sectors of 512 bytes; of each
  // changed name, the old or the new.
  enum class Loss { kNothing, kEverythingUnsynced, kSomeUnsynced };

  struct Write {
    uint64_t offset = 0;
    std::string data = {};
    bool truncates = false;  // To `offset` bytes; no data.
  };
  struct File {
    std::string content;
    std::string durable;
    std::vector<Write> unsynced;
  };
  using FilePointer = std::shared_ptr<File>;

  FaultDisk() = default;

  // The same files, names and sync states; no fault.
  std::unique_ptr<FaultDisk> Clone();

  // Counts every call from now; the one of that number (from 0) fails, and with `sticky` all later
  // ones. Negative: none.
  void FailCall(int64_t call, Fault fault, bool sticky = false);
  int64_t calls();            // Since FailCall or the beginning.
  std::string failed_call();  // "Sync /run/run.db-wal"; empty: none failed.

  // Files that are still open must not be used any more; locks are gone.
  void Crash(Loss loss, uint64_t seed);

  // No write makes the sum of all files' bytes larger.
  void SetCapacity(uint64_t bytes);
  // Every call that would change something fails with PERMISSION_DENIED.
  void SetReadOnly(bool read_only);

  // Past all faults, for tests that damage or look.
  std::vector<std::string> Files();
  uint64_t UsedBytes();
  std::string Content(const std::string& path);
  void Damage(const std::string& path, const std::function<void(std::string&)>& change);

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<MappedFile>> Map(const std::string& path) override;
  absl::StatusOr<std::string> ReadFile(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status SyncFolder(const std::string& folder) override;
  absl::Status CreateFolders(const std::string& folder) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override;
  absl::StatusOr<uint64_t> FileSize(const std::string& path) override;
  absl::StatusOr<uint64_t> FreeBytes(const std::string& folder) override;
  bool Exists(const std::string& path) override;
  bool IsFolder(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<FolderLock>> Lock(const std::string& folder) override;
  absl::StatusOr<std::string> LockOwner(const std::string& folder) override;

  // On open files, for the VFS and for the class itself. Each is one call. `path` is for messages.
  absl::StatusOr<FilePointer> OpenFile(const std::string& path, bool create, bool truncate);
  absl::Status WriteFileAt(File& file, const std::string& path, uint64_t offset,
                           std::span<const uint8_t> data);
  absl::Status TruncateFile(File& file, const std::string& path, uint64_t bytes);
  absl::Status SyncFile(File& file, const std::string& path);
  // The part of `out` that the file has; the rest is zero.
  absl::StatusOr<size_t> ReadFileAt(File& file, const std::string& path, uint64_t offset,
                                    std::span<uint8_t> out);
  absl::Status ReserveBytes(File& file, const std::string& path, uint64_t bytes);
  uint64_t SizeOf(File& file);

 private:
  using Names = std::map<std::string, FilePointer>;
  // A fault if this is the call that fails. `needs_space`, `changes`: what the call is like.
  absl::Status Count(const std::string& call, bool changes, bool needs_space);
  uint64_t Used() const;
  // Folders that were not made durable and whose `lost` is true go, with all that is below them.
  void LoseFolders(const std::function<bool()>& lost);
  static void Apply(std::string& content, const Write& write);

  std::mutex mutex_;
  Names names_;
  Names durable_names_;
  std::set<std::string> folders_ = {"/", "."};
  std::set<std::string> durable_folders_ = {"/", "."};
  std::set<std::string> locked_;
  int64_t lock_generation_ = 0;
  int64_t calls_ = 0;
  int64_t failing_call_ = -1;
  Fault fault_ = Fault::kInputOutput;
  bool sticky_ = false;
  bool read_only_ = false;
  uint64_t capacity_ = uint64_t{1} << 40;
  std::string failed_call_;

  friend class FaultDiskLock;
};

}  // namespace causeway
