// The seam between Causeway and the disk: everything durable goes through it, so that tests can
// fail any call, lose what was not synced, or keep all files in memory.
//
// Errors carry the path and the system's reason: NOT_FOUND, PERMISSION_DENIED, ALREADY_EXISTS,
// RESOURCE_EXHAUSTED (no space), INTERNAL (anything else, EIO above all).
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"

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
  // flock on `folder`/LOCK, into which the owner's pid is written. ALREADY_EXISTS, naming the
  // other pid, if another process holds it. Somebody's LockOwner at the same time is no reason
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
// `path`, or of the folders above it the lowest that exists.
std::string NearestFolder(FileSystem& file_system, std::string path);

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

// By which a file that was changed, replaced or removed is noticed, or one that is being written.

// A file that was written less long ago may be one that is being written: cp and scp empty it
// first.
inline constexpr absl::Duration kFileSettles = absl::Seconds(5);

struct FileVersion {
  int64_t modified_ns = 0;
  int64_t changed_ns = 0;
  uint64_t inode = 0;
  int64_t size = -1;  // -1: there is no such file.
  bool operator==(const FileVersion&) const = default;

  static FileVersion Of(const std::string& file) {
    constexpr int64_t kNanoseconds = 1'000'000'000;
    struct stat facts {};
    if (stat(file.c_str(), &facts) != 0) return {};
    return {facts.st_mtim.tv_sec * kNanoseconds + facts.st_mtim.tv_nsec,
            facts.st_ctim.tv_sec * kNanoseconds + facts.st_ctim.tv_nsec, facts.st_ino,
            facts.st_size};
  }
  // Whether it may be being written. A clock that is somewhat behind changes nothing.
  bool JustWritten(absl::Time now) const {
    return size >= 0 && absl::AbsDuration(now - absl::FromUnixNanos(modified_ns)) < kFileSettles;
  }
};

// INVALID_ARGUMENT, which is that `files` are not whole or do not fit together, as UNAVAILABLE
// while one of them may be being written: whoever supervises this process then starts it again.
inline absl::Status PassesIfJustWritten(const absl::Status& status,
                                        std::initializer_list<std::string> files, absl::Time now) {
  if (!absl::IsInvalidArgument(status)) return status;
  for (const std::string& file : files) {
    if (!FileVersion::Of(file).JustWritten(now)) continue;
    return absl::UnavailableError(absl::StrCat(
        status.message(), "; ", file,
        " was written a moment ago: in case it still is, start again in some seconds"));
  }
  return status;
}

// A FileSystem that passes everything on to another one, to be derived from by what changes a few
// calls: UnsyncedFileSystem here, faults in tests.

class ForwardingFile : public WritableFile {
 public:
  explicit ForwardingFile(std::unique_ptr<WritableFile> base) : base_(std::move(base)) {}
  absl::Status Append(std::span<const uint8_t> data) override { return base_->Append(data); }
  absl::Status Overwrite(uint64_t offset, std::span<const uint8_t> data) override {
    return base_->Overwrite(offset, data);
  }
  absl::Status Reserve(uint64_t bytes) override { return base_->Reserve(bytes); }
  absl::Status Sync() override { return base_->Sync(); }

 private:
  const std::unique_ptr<WritableFile> base_;
};

// `base` outlives the object.
class ForwardingFileSystem : public FileSystem {
 public:
  explicit ForwardingFileSystem(FileSystem& base) : base_(base) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    return base_.Create(path);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path) override {
    return base_.OpenForAppend(path);
  }
  absl::StatusOr<std::unique_ptr<MappedFile>> Map(const std::string& path) override {
    return base_.Map(path);
  }
  absl::StatusOr<std::string> ReadFile(const std::string& path) override {
    return base_.ReadFile(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return base_.Rename(from, to);
  }
  absl::Status Remove(const std::string& path) override { return base_.Remove(path); }
  absl::Status SyncFolder(const std::string& folder) override { return base_.SyncFolder(folder); }
  absl::Status CreateFolders(const std::string& folder) override {
    return base_.CreateFolders(folder);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    return base_.List(folder);
  }
  absl::StatusOr<uint64_t> FileSize(const std::string& path) override {
    return base_.FileSize(path);
  }
  absl::StatusOr<uint64_t> FreeBytes(const std::string& folder) override {
    return base_.FreeBytes(folder);
  }
  bool Exists(const std::string& path) override { return base_.Exists(path); }
  bool IsFolder(const std::string& path) override { return base_.IsFolder(path); }
  absl::StatusOr<std::unique_ptr<FolderLock>> Lock(const std::string& folder) override {
    return base_.Lock(folder);
  }
  absl::StatusOr<std::string> LockOwner(const std::string& folder) override {
    return base_.LockOwner(folder);
  }

 private:
  FileSystem& base_;
};

// Syncs nothing: for what nobody will miss after a power loss.
class UnsyncedFileSystem final : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, ForwardingFileSystem::Create(path));
    return std::make_unique<File>(std::move(file));
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path) override {
    ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, ForwardingFileSystem::OpenForAppend(path));
    return std::make_unique<File>(std::move(file));
  }
  absl::Status SyncFolder(const std::string&) override { return absl::OkStatus(); }

 private:
  class File final : public ForwardingFile {
   public:
    using ForwardingFile::ForwardingFile;
    absl::Status Sync() override { return absl::OkStatus(); }
  };
};

}  // namespace causeway
