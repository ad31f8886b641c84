// The seam between Causeway and the disk: everything durable goes through it, so that tests can
// fail any call, lose what was not synced, or keep all files in memory.
//
// Errors carry the path and the system's reason: NOT_FOUND, PERMISSION_DENIED, ALREADY_EXISTS,
// RESOURCE_EXHAUSTED (no space), INTERNAL (anything else, EIO above all).
#ifndef CAUSEWAY_COMMON_BASE_FILE_SYSTEM_H_
#define CAUSEWAY_COMMON_BASE_FILE_SYSTEM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace causeway {

// One writer, from start to end. Not thread-safe.
class WritableFile {
 public:
  virtual ~WritableFile() = default;  // Closes; what was not synced may be lost.
  virtual absl::Status Append(std::span<const uint8_t> data) = 0;
  // Over bytes that the file has already; the end, where Append writes, does not move.
  virtual absl::Status Overwrite(uint64_t offset, std::span<const uint8_t> data) = 0;
  // Sets the disk's space aside for a file of so many bytes, so that a full disk is noticed now. A
  // file that was opened for appending has what it had; holes in that stay holes. Does not change
  // the file's size. Does nothing where the file system cannot do it.
  virtual absl::Status Reserve(uint64_t bytes) = 0;
  virtual absl::Status Sync() = 0;  // fdatasync.
};

// A file's bytes for reading. Thread-safe. The mapping lives as long as the object.
class MappedFile {
 public:
  virtual ~MappedFile() = default;
  virtual std::span<const uint8_t> bytes() const = 0;
};

// Held by the one process that owns a folder; released when destroyed or when the process dies.
class FolderLock {
 public:
  virtual ~FolderLock() = default;
};

// Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates the file or empties it.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  // Continues at the end of the file, which is created if there is none.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<MappedFile>> Map(const std::string& path) = 0;
  virtual absl::StatusOr<std::string> ReadFile(const std::string& path) = 0;
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;  // A file, or an empty folder.
  // Makes created, renamed and removed names in `folder` durable.
  virtual absl::Status SyncFolder(const std::string& folder) = 0;
  // With all parents; an existing folder is fine.
  virtual absl::Status CreateFolders(const std::string& folder) = 0;
  // Names (not paths) of the entries, sorted.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& folder) = 0;
  virtual absl::StatusOr<uint64_t> FileSize(const std::string& path) = 0;
  // Bytes that this process may still write into the file system of `folder`.
  virtual absl::StatusOr<uint64_t> FreeBytes(const std::string& folder) = 0;
  virtual bool Exists(const std::string& path) = 0;
  virtual bool IsFolder(const std::string& path) = 0;
  // flock on `folder`/LOCK, into which the owner's pid is written. FAILED_PRECONDITION, naming
  // the other pid, if another process holds it. Somebody's LockOwner at the same time is no reason
  // to fail.
  virtual absl::StatusOr<std::unique_ptr<FolderLock>> Lock(const std::string& folder) = 0;
  // Who holds that lock, as the pid in it; empty if nobody does. Changes nothing.
  virtual absl::StatusOr<std::string> LockOwner(const std::string& folder) = 0;

  // The machine's disks; lives for ever.
  static FileSystem* Real();
};

// Replaces `path` as a whole, durably: writes path + ".tmp", syncs it, renames, syncs the folder.
// After an error the old content stands; if only the last sync failed, a crash decides which does.
absl::Status WriteFileAtomically(FileSystem& file_system, const std::string& path,
                                 std::span<const uint8_t> data);
absl::Status WriteFileAtomically(FileSystem& file_system, const std::string& path,
                                 absl::string_view data);

// CreateFolders that outlives a power loss: the parent of every folder that it creates is synced.
absl::Status CreateFoldersDurably(FileSystem& file_system, const std::string& folder);

// "a/b" + "c" is "a/b/c".
std::string JoinPath(absl::string_view folder, absl::string_view name);
// Maps "a/b/c" and "a/b/c/" to "a/b", "c" to ".", "/" to "/".
std::string ParentFolder(absl::string_view path);

// The same for content that is not in one piece: what `write` appends; the first error of `write`
// ends it. After an error the old content stands, and path + ".tmp" is gone, so that a full disk is
// not left fuller.
absl::Status WriteFileAtomically(FileSystem& file_system, const std::string& path,
                                 const std::function<absl::Status(WritableFile&)>& write);

// Mapped files (FileSystem::Map) may become shorter while they are read, and disks fail: the system
// then sends SIGBUS, which ends a process without a word. From now on such a fault ends the process
// with status 1 and a line that names the file. Programs call it before they start threads.
void NameMappedFaults();

// Calls read(), which reads bytes of the mapped file `path`; after NameMappedFaults a fault ends
// that call alone: DATA_LOSS, naming the file. read() is left where the fault strikes, so it
// destroys nothing and holds no lock.
absl::Status ReadMapped(const std::string& path, absl::FunctionRef<void()> read);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_BASE_FILE_SYSTEM_H_
