#include "common/base/file_system.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "common/base/descriptor.h"

namespace causeway {
namespace {

absl::Status ErrnoStatus(absl::string_view what, const std::string& path, int error) {
  const std::string message =
      absl::StrCat("cannot ", what, " ", path, ": ", std::generic_category().message(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case EEXIST:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return absl::InvalidArgumentError(message);
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

// Read at once of a file that does not say how large it is.
constexpr size_t kReadBytes = size_t{4} << 10;

// A file's pages are handed to the disk in parts of this size while it is still being written, so
// that a later sync finds most of them done. Smaller files gain nothing.
constexpr uint64_t kWriteBackBytes = uint64_t{16} << 20;

// Refuses what Git leaves in the place of a file that Git LFS has not fetched: nothing that is read
// here is that.
absl::Status CheckNoPointer(absl::string_view content, const std::string& path) {
  if (!absl::StartsWith(content, "version https://git-lfs.github.com/spec/")) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(path,
                   " is a Git LFS pointer, not the file that it stands for: run `git lfs pull` in "
                   "the repository that it comes from, or download the file itself"));
}

// "/" stays "/".
absl::string_view WithoutLastSlashes(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return path;
}

absl::StatusOr<OwnedDescriptor> Open(const std::string& path, int flags,
                                     absl::string_view what = "open") {
  OwnedDescriptor fd(open(path.c_str(), flags | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoStatus(what, path, errno);
  return fd;
}

// Calls write_some(data), as write(2), until all of it is written.
template <typename WriteSome>
absl::Status WriteAll(std::span<const uint8_t> data, const std::string& path,
                      WriteSome write_some) {
  while (!data.empty()) {
    const ssize_t written = write_some(data);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus("write", path, errno);
    data = data.subspan(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

class RealWritableFile final : public WritableFile {
 public:
  // Appends at `start`.
  RealWritableFile(OwnedDescriptor fd, std::string path, uint64_t start)
      : fd_(std::move(fd)), path_(std::move(path)), start_(start) {}
  absl::Status Append(std::span<const uint8_t> data) override {
    RETURN_IF_ERROR(WriteAll(data, path_, [&](std::span<const uint8_t> rest) {
      const ssize_t written = write(fd_.get(), rest.data(), rest.size());
      if (written > 0) appended_ += static_cast<uint64_t>(written);
      return written;
    }));
    if (appended_ - handed_over_ >= kWriteBackBytes) {
      // A hint: Sync reports what goes wrong. Offsets count from where this writer began.
      sync_file_range(fd_.get(), static_cast<off_t>(start_ + handed_over_),
                      static_cast<off_t>(appended_ - handed_over_), SYNC_FILE_RANGE_WRITE);
      handed_over_ = appended_;
    }
    return absl::OkStatus();
  }
  absl::Status Overwrite(uint64_t offset, std::span<const uint8_t> data) override {
    return WriteAll(data, path_, [&](std::span<const uint8_t> rest) {
      const size_t done = data.size() - rest.size();
      return pwrite(fd_.get(), rest.data(), rest.size(), static_cast<off_t>(offset + done));
    });
  }
  absl::Status Reserve(uint64_t bytes) override {
    // The file has what it had when it was opened. Not posix_fallocate, which writes every block
    // itself where the system call is missing.
    while (bytes > start_ && fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(start_),
                                       static_cast<off_t>(bytes - start_)) != 0) {
      if (errno == EINTR) continue;
      if (errno == EOPNOTSUPP || errno == ENOSYS) break;
      return ErrnoStatus(absl::StrCat("reserve ", bytes, " bytes for"), path_, errno);
    }
    return absl::OkStatus();
  }
  absl::Status Sync() override {
    if (fdatasync(fd_.get()) != 0) return ErrnoStatus("sync", path_, errno);
    return absl::OkStatus();
  }

 private:
  OwnedDescriptor fd_;
  const std::string path_;
  const uint64_t start_;
  uint64_t appended_ = 0;
  uint64_t handed_over_ = 0;
};

class RealMappedFile final : public MappedFile {
 public:
  RealMappedFile(void* address, size_t size) : address_(address), size_(size) {}
  ~RealMappedFile() override {
    if (size_ > 0) munmap(address_, size_);
  }
  std::span<const uint8_t> bytes() const override {
    return {static_cast<const uint8_t*>(address_), size_};
  }

 private:
  void* const address_;
  const size_t size_;
};

// The content of a lock file.
std::string ReadPid(int fd) {
  char pid[32] = {};
  const ssize_t got = pread(fd, pid, sizeof(pid) - 1, 0);
  return got > 0 ? pid : "unknown";
}

// LockOwner shares the lock for an instant. Where it can be shared, nobody owns it: it is tried
// again then.
constexpr int kLockTries = 1000;
constexpr useconds_t kLockPauseMicroseconds = 1000;

// False if another process owns it.
absl::StatusOr<bool> LockAmongReaders(int fd, const std::string& path) {
  for (int i = 0; i < kLockTries; ++i) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK) return ErrnoStatus("lock", path, errno);
    if (flock(fd, LOCK_SH | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return ErrnoStatus("lock", path, errno);
      return false;
    }
    // Two that start at once must not keep each other out.
    flock(fd, LOCK_UN);
    usleep(kLockPauseMicroseconds);
  }
  return false;
}

class RealFolderLock final : public FolderLock {
 public:
  explicit RealFolderLock(OwnedDescriptor fd) : fd_(std::move(fd)) {}

 private:
  OwnedDescriptor fd_;  // Closing it releases the lock.
};

class RealFileSystem final : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    ASSIGN_OR_RETURN(OwnedDescriptor fd, Open(path, O_WRONLY | O_CREAT | O_TRUNC, "create"));
    return std::make_unique<RealWritableFile>(std::move(fd), path, 0);
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path) override {
    // Without O_APPEND, which would send every Overwrite to the end, too.
    ASSIGN_OR_RETURN(OwnedDescriptor fd, Open(path, O_WRONLY | O_CREAT));
    const off_t end = lseek(fd.get(), 0, SEEK_END);
    if (end < 0) return ErrnoStatus("find the end of", path, errno);
    return std::make_unique<RealWritableFile>(std::move(fd), path, static_cast<uint64_t>(end));
  }

  absl::StatusOr<std::unique_ptr<MappedFile>> Map(const std::string& path) override {
    ASSIGN_OR_RETURN(const OwnedDescriptor fd, Open(path, O_RDONLY | O_NONBLOCK));
    struct stat info;
    if (fstat(fd.get(), &info) != 0) return ErrnoStatus("stat", path, errno);
    if (!S_ISREG(info.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
    }
    const auto size = static_cast<size_t>(info.st_size);
    if (size == 0) return std::make_unique<RealMappedFile>(nullptr, 0);
    void* const address = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (address == MAP_FAILED) return ErrnoStatus("map", path, errno);
    auto file = std::make_unique<RealMappedFile>(address, size);
    RETURN_IF_ERROR(CheckNoPointer({static_cast<const char*>(address), size}, path));
    return file;
  }

  absl::StatusOr<std::string> ReadFile(const std::string& path) override {
    ASSIGN_OR_RETURN(const OwnedDescriptor fd, Open(path, O_RDONLY | O_NONBLOCK));
    struct stat info;
    if (fstat(fd.get(), &info) != 0) return ErrnoStatus("stat", path, errno);
    std::string content;
    size_t size = 0;
    for (;;) {
      // One more than there should be, to see the end; a file that grows, or does not say how large
      // it is, takes another turn.
      if (size == content.size()) {
        content.resize(
            std::max({static_cast<size_t>(info.st_size) + 1, size + kReadBytes, 2 * size}));
      }
      const ssize_t got = read(fd.get(), content.data() + size, content.size() - size);
      if (got < 0) {
        if (errno == EINTR) continue;
        return errno == EIO ? absl::DataLossError(absl::StrCat(
                                  path, " is damaged: the disk cannot read it from offset ", size))
                            : ErrnoStatus("read", path, errno);
      }
      if (got == 0) {
        content.resize(size);
        RETURN_IF_ERROR(CheckNoPointer(content, path));
        return content;
      }
      size += static_cast<size_t>(got);
    }
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) != 0) return ErrnoStatus("rename to", to, errno);
    return absl::OkStatus();
  }

  absl::Status Remove(const std::string& path) override {
    if (::remove(path.c_str()) != 0) return ErrnoStatus("remove", path, errno);
    return absl::OkStatus();
  }

  absl::Status SyncFolder(const std::string& folder) override {
    ASSIGN_OR_RETURN(const OwnedDescriptor fd, Open(folder, O_RDONLY | O_DIRECTORY));
    if (fsync(fd.get()) != 0) return ErrnoStatus("sync", folder, errno);
    return absl::OkStatus();
  }

  absl::Status CreateFolders(const std::string& folder) override {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) return ErrnoStatus("create the folder", folder, error.value());
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    std::error_code error;
    std::vector<std::string> names;
    std::filesystem::directory_iterator it(folder, error);
    for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
      names.push_back(it->path().filename().string());
    }
    if (error) return ErrnoStatus("list", folder, error.value());
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::StatusOr<uint64_t> FileSize(const std::string& path) override {
    struct stat info;
    if (stat(path.c_str(), &info) != 0) return ErrnoStatus("stat", path, errno);
    return static_cast<uint64_t>(info.st_size);
  }

  absl::StatusOr<uint64_t> FreeBytes(const std::string& folder) override {
    struct statvfs info;
    if (statvfs(folder.c_str(), &info) != 0) {
      return ErrnoStatus("find the free space of", folder, errno);
    }
    return static_cast<uint64_t>(info.f_bavail) * static_cast<uint64_t>(info.f_frsize);
  }

  bool Exists(const std::string& path) override {
    std::error_code error;
    return std::filesystem::exists(path, error);
  }

  bool IsFolder(const std::string& path) override {
    std::error_code error;
    return std::filesystem::is_directory(path, error);
  }

  absl::StatusOr<std::unique_ptr<FolderLock>> Lock(const std::string& folder) override {
    const std::string path = JoinPath(folder, "LOCK");
    ASSIGN_OR_RETURN(OwnedDescriptor fd, Open(path, O_RDWR | O_CREAT));
    ASSIGN_OR_RETURN(const bool locked, LockAmongReaders(fd.get(), path));
    if (!locked) {
      // It may be ending, or its machine died and the file server has yet to notice.
      return absl::AlreadyExistsError(absl::StrCat(folder, " belongs to another process (pid ",
                                                   ReadPid(fd.get()),
                                                   "); stop it, or choose another folder"));
    }
    const std::string pid = absl::StrCat(getpid());
    if (ftruncate(fd.get(), 0) != 0 || pwrite(fd.get(), pid.data(), pid.size(), 0) < 0) {
      return ErrnoStatus("write", path, errno);
    }
    return std::make_unique<RealFolderLock>(std::move(fd));
  }

  absl::StatusOr<std::string> LockOwner(const std::string& folder) override {
    const std::string path = JoinPath(folder, "LOCK");
    OwnedDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) {
      if (errno == ENOENT) return std::string();
      return ErrnoStatus("open", path, errno);
    }
    if (flock(fd.get(), LOCK_SH | LOCK_NB) == 0) return std::string();
    if (errno != EWOULDBLOCK) return ErrnoStatus("lock", path, errno);
    return ReadPid(fd.get());
  }
};

}  // namespace

FileSystem* FileSystem::Real() {
  static RealFileSystem file_system;
  return &file_system;
}

absl::Status WriteFileAtomically(FileSystem& file_system, const std::string& path,
                                 std::span<const uint8_t> data) {
  return WriteFileAtomically(file_system, path,
                             [&](WritableFile& file) { return file.Append(data); });
}

absl::Status WriteFileAtomically(FileSystem& file_system, const std::string& path,
                                 const std::function<absl::Status(WritableFile&)>& write) {
  const std::string temporary = path + ".tmp";
  const absl::Status written = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, file_system.Create(temporary));
    RETURN_IF_ERROR(write(*file));
    return file->Sync();
  }();
  const absl::Status renamed = written.ok() ? file_system.Rename(temporary, path) : written;
  if (!renamed.ok()) {
    // A disk that is full has no room for half a file. What cannot be removed either is no news.
    file_system.Remove(temporary).IgnoreError();
    return renamed;
  }
  return file_system.SyncFolder(ParentFolder(path));
}

absl::Status WriteFileAtomically(FileSystem& file_system, const std::string& path,
                                 absl::string_view data) {
  return WriteFileAtomically(file_system, path,
                             std::span(reinterpret_cast<const uint8_t*>(data.data()), data.size()));
}

absl::Status CreateFoldersDurably(FileSystem& file_system, const std::string& folder) {
  std::vector<std::string> missing;
  for (std::string path(WithoutLastSlashes(folder)); !file_system.IsFolder(path);) {
    missing.push_back(path);
    std::string parent = ParentFolder(path);
    if (parent == path) break;
    path = std::move(parent);
  }
  // Each made durable before the next, so that an interruption leaves one in doubt at most.
  for (auto path = missing.rbegin(); path != missing.rend(); ++path) {
    RETURN_IF_ERROR(file_system.CreateFolders(*path));
    RETURN_IF_ERROR(file_system.SyncFolder(ParentFolder(*path)));
  }
  return absl::OkStatus();
}

std::string JoinPath(absl::string_view folder, absl::string_view name) {
  if (folder.empty()) return std::string(name);
  return folder.back() == '/' ? absl::StrCat(folder, name) : absl::StrCat(folder, "/", name);
}

std::string ParentFolder(absl::string_view path) {
  path = WithoutLastSlashes(path);
  const size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos) return ".";
  return std::string(WithoutLastSlashes(path.substr(0, slash + 1)));
}

std::string NearestFolder(FileSystem& file_system, std::string path) {
  while (!file_system.Exists(path) && path != ParentFolder(path)) path = ParentFolder(path);
  return path;
}

namespace {

constexpr absl::string_view kWhat =
    " became shorter while it was read, or its disk failed: put the whole file back (write it "
    "under another name, then rename it) and start again";

// Where the fault of this thread's ReadMapped goes on; null: it is in none.
thread_local sigjmp_buf* guard = nullptr;

void Say(absl::string_view text) {
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;  // Nobody is left to tell.
}

// The file of a line "BEGIN-END rwxp OFFSET DEVICE INODE   PATH" if the address is in it.
absl::string_view PathAt(absl::string_view line, uint64_t address) {
  uint64_t begin = 0;
  uint64_t end = 0;
  const char* const last = line.data() + line.size();
  const char* const dash = std::from_chars(line.data(), last, begin, 16).ptr;
  if (dash == last) return {};
  std::from_chars(dash + 1, last, end, 16);
  const size_t path = line.find('/');
  if (address < begin || address >= end || path == absl::string_view::npos) return {};
  return line.substr(path);
}

// Calls nothing that a signal handler may not: no memory is allocated, no lock taken.
void OnFault(int number, siginfo_t* info, void*) {
  if (guard != nullptr) siglongjmp(*guard, 1);
  const auto address = reinterpret_cast<uint64_t>(info->si_addr);
  const int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  std::array<char, 8192> line;
  size_t size = 0;
  while (maps >= 0) {
    const ssize_t got = read(maps, line.data() + size, line.size() - size);
    if (got <= 0) break;
    size += static_cast<size_t>(got);
    size_t begin = 0;
    for (size_t at = 0; at < size; ++at) {
      if (line[at] != '\n') continue;
      const absl::string_view path = PathAt({line.data() + begin, at - begin}, address);
      begin = at + 1;
      if (path.empty()) continue;
      Say("causeway: ");
      Say(path);
      Say(kWhat);
      Say("\n");
      _exit(1);
    }
    std::memmove(line.data(), line.data() + begin, size - begin);
    size -= begin;
  }
  // Nothing for no file: as if nobody had asked.
  signal(number, SIG_DFL);
  raise(number);
}

}  // namespace

void NameMappedFaults() {
  struct sigaction action = {};
  action.sa_sigaction = OnFault;
  // Not blocked meanwhile: ReadMapped's fault leaves the handler by a jump, which restores no mask.
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

absl::Status ReadMapped(const std::string& path, absl::FunctionRef<void()> read) {
  sigjmp_buf here;
  if (sigsetjmp(here, /*savemask=*/0) != 0) {
    guard = nullptr;
    return absl::DataLossError(absl::StrCat(path, kWhat));
  }
  guard = &here;
  read();
  guard = nullptr;
  return absl::OkStatus();
}

}  // namespace causeway
