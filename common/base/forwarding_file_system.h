// A FileSystem that passes everything on to another one, to be derived from by what changes a few
// calls: UnsyncedFileSystem here, faults in tests.
#ifndef CAUSEWAY_COMMON_BASE_FORWARDING_FILE_SYSTEM_H_
#define CAUSEWAY_COMMON_BASE_FORWARDING_FILE_SYSTEM_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/status_macros.h"

namespace causeway {

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

#endif  // CAUSEWAY_COMMON_BASE_FORWARDING_FILE_SYSTEM_H_
