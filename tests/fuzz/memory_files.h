// Files in memory, for what reads and writes them. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"

namespace causeway::fuzz {

// One flat set of names; a folder is what some name lies in.
class MemoryFiles final : public FileSystem {
 public:
  void Put(const std::string& path, std::vector<uint8_t> bytes) {
    bytes.shrink_to_fit();  // A sanitizer sees every byte read beyond it.
    files_[path] = std::move(bytes);
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    files_[path].clear();
    return std::make_unique<Writer>(files_[path]);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path) override {
    return std::make_unique<Writer>(files_[path]);
  }
  absl::StatusOr<std::unique_ptr<MappedFile>> Map(const std::string& path) override {
    const auto found = files_.find(path);
    if (found == files_.end()) return NotFound(path);
    return std::make_unique<Mapping>(found->second);
  }
  absl::StatusOr<std::string> ReadFile(const std::string& path) override {
    const auto found = files_.find(path);
    if (found == files_.end()) return NotFound(path);
    return std::string(found->second.begin(), found->second.end());
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    const auto found = files_.find(from);
    if (found == files_.end()) return NotFound(from);
    std::vector<uint8_t> bytes = std::move(found->second);
    files_.erase(found);
    Put(to, std::move(bytes));
    return absl::OkStatus();
  }
  absl::Status Remove(const std::string& path) override {
    return files_.erase(path) > 0 ? absl::OkStatus() : NotFound(path);
  }
  absl::Status SyncFolder(const std::string&) override { return absl::OkStatus(); }
  absl::Status CreateFolders(const std::string&) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    std::vector<std::string> names;
    for (const auto& [path, bytes] : files_) {
      if (ParentFolder(path) == folder) names.push_back(path.substr(folder.size() + 1));
    }
    return names;
  }
  absl::StatusOr<uint64_t> FileSize(const std::string& path) override {
    const auto found = files_.find(path);
    if (found == files_.end()) return NotFound(path);
    return found->second.size();
  }
  absl::StatusOr<uint64_t> FreeBytes(const std::string&) override { return uint64_t{1} << 40; }
  bool Exists(const std::string& path) override { return files_.contains(path); }
  bool IsFolder(const std::string& path) override { return !List(path)->empty(); }
  absl::StatusOr<std::unique_ptr<FolderLock>> Lock(const std::string&) override {
    return std::make_unique<FolderLock>();
  }
  absl::StatusOr<std::string> LockOwner(const std::string&) override { return std::string(); }

 private:
  class Writer final : public WritableFile {
   public:
    explicit Writer(std::vector<uint8_t>& bytes) : bytes_(bytes) {}
    absl::Status Append(std::span<const uint8_t> data) override {
      bytes_.insert(bytes_.end(), data.begin(), data.end());
      return absl::OkStatus();
    }
    absl::Status Overwrite(uint64_t offset, std::span<const uint8_t> data) override {
      if (bytes_.size() < offset + data.size()) bytes_.resize(offset + data.size());
      std::ranges::copy(data, bytes_.begin() + static_cast<ptrdiff_t>(offset));
      return absl::OkStatus();
    }
    absl::Status Reserve(uint64_t) override { return absl::OkStatus(); }
    absl::Status Sync() override { return absl::OkStatus(); }

   private:
    std::vector<uint8_t>& bytes_;
  };

  class Mapping final : public MappedFile {
   public:
    explicit Mapping(const std::vector<uint8_t>& bytes) : bytes_(bytes) {}
    std::span<const uint8_t> bytes() const override { return bytes_; }

   private:
    const std::vector<uint8_t> bytes_;
  };

  static absl::Status NotFound(const std::string& path) {
    return absl::NotFoundError(absl::StrCat("there is no ", path));
  }

  std::map<std::string, std::vector<uint8_t>> files_;
};

}  // namespace causeway::fuzz
