#include "tests/unit/server/store/fault_disk_vfs.h"

namespace causeway::server {
namespace {

FaultDisk& DiskOf(sqlite3_vfs* vfs) { return *static_cast<FaultDisk*>(vfs->pAppData); }

// SQLite allocates szOsFile bytes and calls xOpen, which constructs this in them.
struct OpenFile {
  sqlite3_file base;
  FaultDisk* disk;
  FaultDisk::FilePointer file;
  std::string path;
  // As SQLite's own VFS does it: the first sync of a new log or journal makes its name durable.
  bool sync_folder;
};

OpenFile& Of(sqlite3_file* file) { return *reinterpret_cast<OpenFile*>(file); }

int CodeOf(const absl::Status& status, int otherwise) {
  if (status.ok()) return SQLITE_OK;
  return absl::IsResourceExhausted(status) ? SQLITE_FULL : otherwise;
}

int Close(sqlite3_file* file) {
  Of(file).~OpenFile();
  return SQLITE_OK;
}

int Read(sqlite3_file* file, void* out, int bytes, sqlite3_int64 offset) {
  OpenFile& open = Of(file);
  const absl::StatusOr<size_t> got =
      open.disk->ReadFileAt(*open.file, open.path, static_cast<uint64_t>(offset),
                            {static_cast<uint8_t*>(out), static_cast<size_t>(bytes)});
  if (!got.ok()) return SQLITE_IOERR_READ;
  return *got == static_cast<size_t>(bytes) ? SQLITE_OK : SQLITE_IOERR_SHORT_READ;
}

int Write(sqlite3_file* file, const void* data, int bytes, sqlite3_int64 offset) {
  OpenFile& open = Of(file);
  return CodeOf(
      open.disk->WriteFileAt(*open.file, open.path, static_cast<uint64_t>(offset),
                             {static_cast<const uint8_t*>(data), static_cast<size_t>(bytes)}),
      SQLITE_IOERR_WRITE);
}

int Truncate(sqlite3_file* file, sqlite3_int64 bytes) {
  OpenFile& open = Of(file);
  return CodeOf(open.disk->TruncateFile(*open.file, open.path, static_cast<uint64_t>(bytes)),
                SQLITE_IOERR_TRUNCATE);
}

int Sync(sqlite3_file* file, int) {
  OpenFile& open = Of(file);
  // SQLite's own VFS gives this one code whatever the reason.
  if (!open.disk->SyncFile(*open.file, open.path).ok()) return SQLITE_IOERR_FSYNC;
  if (open.sync_folder) {
    if (!open.disk->SyncFolder(ParentFolder(open.path)).ok()) return SQLITE_IOERR_DIR_FSYNC;
    open.sync_folder = false;
  }
  return SQLITE_OK;
}

int FileSize(sqlite3_file* file, sqlite3_int64* bytes) {
  *bytes = static_cast<sqlite3_int64>(Of(file).disk->SizeOf(*Of(file).file));
  return SQLITE_OK;
}

int Lock(sqlite3_file*, int) { return SQLITE_OK; }
int CheckReservedLock(sqlite3_file*, int* reserved) {
  *reserved = 0;
  return SQLITE_OK;
}
int FileControl(sqlite3_file*, int, void*) { return SQLITE_NOTFOUND; }
int SectorSize(sqlite3_file*) { return 512; }
int DeviceCharacteristics(sqlite3_file*) { return SQLITE_IOCAP_POWERSAFE_OVERWRITE; }

// Version 1: no shared memory, which exclusive locking does not need.
constexpr sqlite3_io_methods MakeMethods() {
  sqlite3_io_methods methods{};
  methods.iVersion = 1;
  methods.xClose = Close;
  methods.xRead = Read;
  methods.xWrite = Write;
  methods.xTruncate = Truncate;
  methods.xSync = Sync;
  methods.xFileSize = FileSize;
  methods.xLock = Lock;
  methods.xUnlock = Lock;
  methods.xCheckReservedLock = CheckReservedLock;
  methods.xFileControl = FileControl;
  methods.xSectorSize = SectorSize;
  methods.xDeviceCharacteristics = DeviceCharacteristics;
  return methods;
}
constexpr sqlite3_io_methods kMethods = MakeMethods();

int Open(sqlite3_vfs* vfs, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  FaultDisk& disk = DiskOf(vfs);
  file->pMethods = nullptr;
  OpenFile* const open = new (file) OpenFile{};
  open->disk = &disk;
  if (name == nullptr) {
    open->file = std::make_shared<FaultDisk::File>();  // A temporary one: without a name.
  } else {
    open->path = name;
    const bool create = (flags & SQLITE_OPEN_CREATE) != 0;
    open->sync_folder =
        create && !disk.Exists(name) && (flags & (SQLITE_OPEN_WAL | SQLITE_OPEN_MAIN_JOURNAL)) != 0;
    absl::StatusOr<FaultDisk::FilePointer> opened = disk.OpenFile(name, create, /*truncate=*/false);
    if (!opened.ok()) {
      open->~OpenFile();
      file->pMethods = nullptr;
      return CodeOf(opened.status(), SQLITE_CANTOPEN);
    }
    open->file = *std::move(opened);
  }
  open->base.pMethods = &kMethods;
  if (out_flags != nullptr) *out_flags = flags;
  return SQLITE_OK;
}

int Delete(sqlite3_vfs* vfs, const char* name, int sync_folder) {
  FaultDisk& disk = DiskOf(vfs);
  const absl::Status removed = disk.Remove(name);
  if (absl::IsNotFound(removed)) return SQLITE_IOERR_DELETE_NOENT;
  if (!removed.ok()) return SQLITE_IOERR_DELETE;
  if (sync_folder != 0 && !disk.SyncFolder(ParentFolder(name)).ok()) return SQLITE_IOERR_DIR_FSYNC;
  return SQLITE_OK;
}

int Access(sqlite3_vfs* vfs, const char* name, int, int* result) {
  *result = DiskOf(vfs).Exists(name) ? 1 : 0;
  return SQLITE_OK;
}

int FullPathname(sqlite3_vfs*, const char* name, int bytes, char* out) {
  const size_t length = std::strlen(name);
  if (length >= static_cast<size_t>(bytes)) return SQLITE_CANTOPEN;
  std::memcpy(out, name, length + 1);
  return SQLITE_OK;
}

// The salts of the log: the same in every run of a test.
int Randomness(sqlite3_vfs*, int bytes, char* out) {
  std::memset(out, 0x5a, static_cast<size_t>(bytes));
  return bytes;
}

int Sleep(sqlite3_vfs*, int) { return 0; }
int CurrentTime(sqlite3_vfs*, double* days) {
  *days = 2460000.5;
  return SQLITE_OK;
}
int LastError(sqlite3_vfs*, int, char*) { return 0; }

}  // namespace

FaultDiskVfs::FaultDiskVfs(FaultDisk& disk) {
  static std::atomic<int> made = 0;
  name_ = absl::StrCat("fault-disk-", ++made);
  vfs_ = sqlite3_vfs{};
  vfs_.iVersion = 1;
  vfs_.szOsFile = sizeof(OpenFile);
  vfs_.mxPathname = 512;
  vfs_.zName = name_.c_str();
  vfs_.pAppData = &disk;
  vfs_.xOpen = Open;
  vfs_.xDelete = Delete;
  vfs_.xAccess = Access;
  vfs_.xFullPathname = FullPathname;
  vfs_.xRandomness = Randomness;
  vfs_.xSleep = Sleep;
  vfs_.xCurrentTime = CurrentTime;
  vfs_.xGetLastError = LastError;
  sqlite3_vfs_register(&vfs_, /*makeDflt=*/0);
}

FaultDiskVfs::~FaultDiskVfs() { sqlite3_vfs_unregister(&vfs_); }

}  // namespace causeway::server
