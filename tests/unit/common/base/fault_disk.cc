#include "tests/unit/common/base/fault_disk.h"

#include <algorithm>
#include <cstring>

#include "common/base/random.h"

namespace causeway {
namespace {

constexpr size_t kSectorBytes = 512;

absl::Status Missing(const std::string& path) {
  return absl::NotFoundError(absl::StrCat("cannot open ", path, ": No such file or directory"));
}

class Mapped final : public MappedFile {
 public:
  explicit Mapped(const std::string& content) : bytes_(content.begin(), content.end()) {}
  std::span<const uint8_t> bytes() const override { return bytes_; }

 private:
  const std::vector<uint8_t> bytes_;  // No larger, so that a sanitizer sees what is read beyond it.
};

class Writable final : public WritableFile {
 public:
  Writable(FaultDisk& disk, FaultDisk::FilePointer file, std::string path)
      : disk_(disk), file_(std::move(file)), path_(std::move(path)) {}
  absl::Status Append(std::span<const uint8_t> data) override {
    return disk_.WriteFileAt(*file_, path_, disk_.SizeOf(*file_), data);
  }
  absl::Status Overwrite(uint64_t offset, std::span<const uint8_t> data) override {
    return disk_.WriteFileAt(*file_, path_, offset, data);
  }
  absl::Status Reserve(uint64_t bytes) override { return disk_.ReserveBytes(*file_, path_, bytes); }
  absl::Status Sync() override { return disk_.SyncFile(*file_, path_); }

 private:
  FaultDisk& disk_;
  const FaultDisk::FilePointer file_;
  const std::string path_;
};

}  // namespace

class FaultDiskLock final : public FolderLock {
 public:
  FaultDiskLock(FaultDisk& disk, std::string folder, int64_t generation)
      : disk_(disk), folder_(std::move(folder)), generation_(generation) {}
  ~FaultDiskLock() override {
    const std::lock_guard lock(disk_.mutex_);
    if (generation_ == disk_.lock_generation_) disk_.locked_.erase(folder_);
  }

 private:
  FaultDisk& disk_;
  const std::string folder_;
  const int64_t generation_;
};

absl::Status FaultDisk::Count(const std::string& call, bool changes, bool needs_space) {
  const int64_t number = calls_++;
  if (changes && read_only_) {
    return absl::PermissionDeniedError(absl::StrCat("cannot ", call, ": Read-only file system"));
  }
  const bool due =
      failing_call_ >= 0 && (sticky_ ? number >= failing_call_ : number == failing_call_);
  if (!due) return absl::OkStatus();
  if (fault_ == Fault::kDiskFull) {
    if (!needs_space) return absl::OkStatus();
    if (failed_call_.empty()) failed_call_ = call;
    return absl::ResourceExhaustedError(absl::StrCat("cannot ", call, ": No space left on device"));
  }
  if (failed_call_.empty()) failed_call_ = call;
  return absl::InternalError(absl::StrCat("cannot ", call, ": Input/output error"));
}

std::unique_ptr<FaultDisk> FaultDisk::Clone() {
  const std::lock_guard lock(mutex_);
  auto clone = std::make_unique<FaultDisk>();
  std::map<const File*, FilePointer> copies;
  const auto copy = [&](const Names& names) {
    Names result;
    for (const auto& [name, file] : names) {
      FilePointer& made = copies[file.get()];
      if (made == nullptr) made = std::make_shared<File>(*file);
      result[name] = made;
    }
    return result;
  };
  clone->names_ = copy(names_);
  clone->durable_names_ = copy(durable_names_);
  clone->folders_ = folders_;
  clone->durable_folders_ = durable_folders_;
  clone->capacity_ = capacity_;
  return clone;
}

void FaultDisk::FailCall(int64_t call, Fault fault, bool sticky) {
  const std::lock_guard lock(mutex_);
  calls_ = 0;
  failing_call_ = call;
  fault_ = fault;
  sticky_ = sticky;
  failed_call_.clear();
}

int64_t FaultDisk::calls() {
  const std::lock_guard lock(mutex_);
  return calls_;
}

std::string FaultDisk::failed_call() {
  const std::lock_guard lock(mutex_);
  return failed_call_;
}

void FaultDisk::Apply(std::string& content, const Write& write) {
  if (write.truncates) {
    content.resize(write.offset);
    return;
  }
  const size_t end = write.offset + write.data.size();
  if (content.size() < end) content.resize(end);
  std::copy(write.data.begin(), write.data.end(),
            content.begin() + static_cast<ptrdiff_t>(write.offset));
}

void FaultDisk::LoseFolders(const std::function<bool()>& lost) {
  std::set<std::string> left = {"/", "."};
  // Sorted, so that a parent comes before what it holds.
  for (const std::string& folder : folders_) {
    const bool safe = durable_folders_.count(folder) != 0 || !lost();
    if (safe && left.count(ParentFolder(folder)) != 0) left.insert(folder);
  }
  folders_ = std::move(left);
  const auto below = [&](const auto& entry) {
    return folders_.count(ParentFolder(entry.first)) == 0;
  };
  std::erase_if(names_, below);
  std::erase_if(durable_names_, below);
}

void FaultDisk::Crash(Loss loss, uint64_t seed) {
  const std::lock_guard lock(mutex_);
  uint64_t drawn = 0;
  const auto coin = [&] { return RandomBits(seed, 0, drawn++) % 2 == 0; };
  if (loss == Loss::kEverythingUnsynced) {
    names_ = durable_names_;
    LoseFolders([] { return true; });
  }
  if (loss == Loss::kSomeUnsynced) {
    LoseFolders(coin);
    Names all = names_;
    all.insert(durable_names_.begin(), durable_names_.end());
    for (const auto& [name, unused] : all) {
      const Names& source = coin() ? names_ : durable_names_;
      const auto found = source.find(name);
      if (found == source.end()) {
        names_.erase(name);
      } else {
        names_[name] = found->second;
      }
    }
  }
  durable_names_ = names_;
  durable_folders_ = folders_;
  for (const auto& [name, file] : names_) {
    if (loss == Loss::kSomeUnsynced) {
      for (const Write& write : file->unsynced) {
        if (write.truncates) {
          if (coin()) Apply(file->durable, write);
          continue;
        }
        for (size_t at = 0; at < write.data.size(); at += kSectorBytes) {
          if (coin()) {
            Apply(file->durable,
                  {.offset = write.offset + at, .data = write.data.substr(at, kSectorBytes)});
          }
        }
      }
    }
    file->unsynced.clear();
    if (loss == Loss::kNothing) {
      file->durable = file->content;
    } else {
      file->content = file->durable;
    }
  }
  locked_.clear();
  ++lock_generation_;
  failing_call_ = -1;
}

void FaultDisk::SetCapacity(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  capacity_ = bytes;
}

void FaultDisk::SetReadOnly(bool read_only) {
  const std::lock_guard lock(mutex_);
  read_only_ = read_only;
}

std::vector<std::string> FaultDisk::Files() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> files;
  for (const auto& [name, unused] : names_) files.push_back(name);
  return files;
}

std::string FaultDisk::Content(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto found = names_.find(path);
  return found == names_.end() ? "" : found->second->content;
}

void FaultDisk::Damage(const std::string& path, const std::function<void(std::string&)>& change) {
  const std::lock_guard lock(mutex_);
  File& file = *names_.at(path);
  change(file.content);
  file.durable = file.content;
  file.unsynced.clear();
}

uint64_t FaultDisk::UsedBytes() {
  const std::lock_guard lock(mutex_);
  return Used();
}

uint64_t FaultDisk::Used() const {
  uint64_t used = 0;
  for (const auto& [name, file] : names_) used += file->content.size();
  return used;
}

absl::StatusOr<FaultDisk::FilePointer> FaultDisk::OpenFile(const std::string& path, bool create,
                                                           bool truncate) {
  const std::lock_guard lock(mutex_);
  const auto found = names_.find(path);
  const bool absent = found == names_.end();
  RETURN_IF_ERROR(
      Count(absl::StrCat(absent && create ? "create " : "open ", path), create, absent && create));
  if (absent && !create) return Missing(path);
  if (folders_.count(ParentFolder(path)) == 0) return Missing(path);
  FilePointer& file = names_[path];
  if (absent) file = std::make_shared<File>();
  if (truncate && !file->content.empty()) {
    const Write write = {.offset = 0, .truncates = true};
    Apply(file->content, write);
    file->unsynced.push_back(write);
  }
  return file;
}

absl::Status FaultDisk::WriteFileAt(File& file, const std::string& path, uint64_t offset,
                                    std::span<const uint8_t> data) {
  const std::lock_guard lock(mutex_);
  absl::Status status = Count(absl::StrCat("write ", path), true, true);
  const uint64_t end = offset + data.size();
  if (status.ok() && end > file.content.size() &&
      Used() + (end - file.content.size()) > capacity_) {
    status = absl::ResourceExhaustedError(
        absl::StrCat("cannot write ", path, ": No space left on device"));
  }
  if (read_only_) return status;
  const std::span<const uint8_t> done = status.ok() ? data : data.first(data.size() / 2);
  if (done.empty()) return status;
  Write write = {.offset = offset,
                 .data = {reinterpret_cast<const char*>(done.data()), done.size()}};
  if (status.ok() || file.content.size() >= offset + done.size() ||
      Used() + done.size() <= capacity_) {
    Apply(file.content, write);
    file.unsynced.push_back(std::move(write));
  }
  return status;
}

absl::Status FaultDisk::TruncateFile(File& file, const std::string& path, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(Count(absl::StrCat("truncate ", path), true, false));
  const Write write = {.offset = bytes, .truncates = true};
  Apply(file.content, write);
  file.unsynced.push_back(write);
  return absl::OkStatus();
}

absl::Status FaultDisk::SyncFile(File& file, const std::string& path) {
  const std::lock_guard lock(mutex_);
  const absl::Status status = Count(absl::StrCat("sync ", path), true, true);
  if (status.ok()) {
    for (const Write& write : file.unsynced) Apply(file.durable, write);
  }
  file.unsynced.clear();  // The next sync knows nothing of them, whatever this one did.
  return status;
}

absl::StatusOr<size_t> FaultDisk::ReadFileAt(File& file, const std::string& path, uint64_t offset,
                                             std::span<uint8_t> out) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(Count(absl::StrCat("read ", path), false, false));
  std::fill(out.begin(), out.end(), uint8_t{0});
  if (offset >= file.content.size()) return 0;
  const size_t bytes = std::min<size_t>(out.size(), file.content.size() - offset);
  std::memcpy(out.data(), file.content.data() + offset, bytes);
  return bytes;
}

absl::Status FaultDisk::ReserveBytes(File& file, const std::string& path, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(Count(absl::StrCat("reserve space for ", path), true, true));
  const uint64_t size = file.content.size();
  if (bytes <= size || Used() + (bytes - size) <= capacity_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot reserve space for ", path, ": No space left on device"));
}

uint64_t FaultDisk::SizeOf(File& file) {
  const std::lock_guard lock(mutex_);
  return file.content.size();
}

absl::StatusOr<std::unique_ptr<WritableFile>> FaultDisk::Create(const std::string& path) {
  ASSIGN_OR_RETURN(FilePointer file, OpenFile(path, /*create=*/true, /*truncate=*/true));
  return std::make_unique<Writable>(*this, std::move(file), path);
}

absl::StatusOr<std::unique_ptr<WritableFile>> FaultDisk::OpenForAppend(const std::string& path) {
  ASSIGN_OR_RETURN(FilePointer file, OpenFile(path, /*create=*/true, /*truncate=*/false));
  return std::make_unique<Writable>(*this, std::move(file), path);
}

absl::StatusOr<std::unique_ptr<MappedFile>> FaultDisk::Map(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string content, ReadFile(path));
  return std::make_unique<Mapped>(content);
}

absl::StatusOr<std::string> FaultDisk::ReadFile(const std::string& path) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(Count(absl::StrCat("read ", path), false, false));
  const auto found = names_.find(path);
  if (found == names_.end()) return Missing(path);
  return found->second->content;
}

absl::Status FaultDisk::Rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(Count(absl::StrCat("rename to ", to), true, true));
  const auto found = names_.find(from);
  if (found == names_.end()) return Missing(from);
  names_[to] = found->second;
  names_.erase(from);
  return absl::OkStatus();
}

absl::Status FaultDisk::Remove(const std::string& path) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(Count(absl::StrCat("remove ", path), true, false));
  if (names_.erase(path) > 0) return absl::OkStatus();
  const auto folder = folders_.find(path);
  if (folder == folders_.end()) return Missing(path);
  const auto lies_within = [&](const std::string& name) { return ParentFolder(name) == path; };
  if (std::any_of(folders_.begin(), folders_.end(), lies_within) ||
      std::any_of(names_.begin(), names_.end(),
                  [&](const auto& entry) { return lies_within(entry.first); })) {
    return absl::InternalError(absl::StrCat("cannot remove ", path, ": Directory not empty"));
  }
  folders_.erase(folder);
  return absl::OkStatus();
}

absl::Status FaultDisk::SyncFolder(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(Count(absl::StrCat("sync ", folder), true, true));
  const auto within = [&](const auto& entry) { return ParentFolder(entry.first) == folder; };
  std::erase_if(durable_names_, within);
  for (const auto& entry : names_) {
    if (within(entry)) durable_names_.insert(entry);
  }
  for (const std::string& name : folders_) {
    if (ParentFolder(name) == folder) durable_folders_.insert(name);
  }
  // A folder that was removed took its names along: another of that name does not have them.
  std::erase_if(durable_folders_, [&](const std::string& name) {
    return ParentFolder(name) == folder && folders_.count(name) == 0;
  });
  std::erase_if(durable_names_, [&](const auto& entry) {
    return durable_folders_.count(ParentFolder(entry.first)) == 0;
  });
  return absl::OkStatus();
}

absl::Status FaultDisk::CreateFolders(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  if (folders_.count(folder) != 0) return absl::OkStatus();
  RETURN_IF_ERROR(Count(absl::StrCat("create the folder ", folder), true, true));
  for (std::string path = folder; folders_.insert(path).second;) path = ParentFolder(path);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> FaultDisk::List(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(Count(absl::StrCat("list ", folder), false, false));
  if (folders_.count(folder) == 0) return Missing(folder);
  std::set<std::string> found;
  const std::string prefix = folder + "/";
  for (const auto& [name, unused] : names_) {
    if (ParentFolder(name) == folder) found.insert(name.substr(prefix.size()));
  }
  for (const std::string& name : folders_) {
    if (name != folder && ParentFolder(name) == folder) found.insert(name.substr(prefix.size()));
  }
  return std::vector<std::string>(found.begin(), found.end());
}

absl::StatusOr<uint64_t> FaultDisk::FileSize(const std::string& path) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(Count(absl::StrCat("stat ", path), false, false));
  const auto found = names_.find(path);
  if (found == names_.end()) return Missing(path);
  return found->second->content.size();
}

absl::StatusOr<uint64_t> FaultDisk::FreeBytes(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(Count(absl::StrCat("find the free space of ", folder), false, false));
  const uint64_t used = Used();
  return used < capacity_ ? capacity_ - used : 0;
}

bool FaultDisk::Exists(const std::string& path) {
  const std::lock_guard lock(mutex_);
  return names_.count(path) != 0 || folders_.count(path) != 0;
}

bool FaultDisk::IsFolder(const std::string& path) {
  const std::lock_guard lock(mutex_);
  return folders_.count(path) != 0;
}

absl::StatusOr<std::unique_ptr<FolderLock>> FaultDisk::Lock(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(Count(absl::StrCat("lock ", folder), true, false));
  if (!locked_.insert(folder).second) {
    return absl::AlreadyExistsError(absl::StrCat(folder, " belongs to another process"));
  }
  return std::make_unique<FaultDiskLock>(*this, folder, lock_generation_);
}

absl::StatusOr<std::string> FaultDisk::LockOwner(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  return std::string(locked_.count(folder) != 0 ? "1" : "");
}

}  // namespace causeway
