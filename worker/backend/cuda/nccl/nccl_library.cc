#include "worker/backend/cuda/nccl/nccl_library.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway::worker::cuda {
namespace {

constexpr const char* kNames[] = {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"};
constexpr int kLeastVersion = 21800;  // 2.18

template <typename Function>
absl::Status Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the NCCL that was found has no ", name,
                                                    ": install version 2.18 or a later one"));
}

absl::StatusOr<NcclLibrary> Open() {
  void* library = nullptr;
  std::string looked_for;
  for (const char* const name : kNames) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    absl::StrAppend(&looked_for, "\n  ", dlerror());
  }
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("several GPUs need NCCL, which was not found: install libnccl.so.2 (of the "
                     "CUDA Toolkit's repository) or name its folder in LD_LIBRARY_PATH, or use one "
                     "GPU. Looked for:",
                     looked_for));
  }
  NcclLibrary nccl;
  RETURN_IF_ERROR(Find(library, "ncclGetVersion", nccl.get_version));
  RETURN_IF_ERROR(Find(library, "ncclGetUniqueId", nccl.get_unique_id));
  RETURN_IF_ERROR(Find(library, "ncclCommInitRank", nccl.comm_init_rank));
  RETURN_IF_ERROR(Find(library, "ncclCommDestroy", nccl.comm_destroy));
  RETURN_IF_ERROR(Find(library, "ncclCommAbort", nccl.comm_abort));
  RETURN_IF_ERROR(Find(library, "ncclCommGetAsyncError", nccl.comm_get_async_error));
  RETURN_IF_ERROR(Find(library, "ncclGetErrorString", nccl.get_error_string));
  RETURN_IF_ERROR(Find(library, "ncclGetLastError", nccl.get_last_error));
  RETURN_IF_ERROR(Find(library, "ncclGroupStart", nccl.group_start));
  RETURN_IF_ERROR(Find(library, "ncclGroupEnd", nccl.group_end));
  RETURN_IF_ERROR(Find(library, "ncclAllReduce", nccl.all_reduce));
  RETURN_IF_ERROR(Find(library, "ncclReduce", nccl.reduce));
  RETURN_IF_ERROR(Find(library, "ncclReduceScatter", nccl.reduce_scatter));
  RETURN_IF_ERROR(Find(library, "ncclAllGather", nccl.all_gather));
  RETURN_IF_ERROR(Find(library, "ncclBroadcast", nccl.broadcast));
  int version = 0;
  RETURN_IF_ERROR(nccl.Check(nccl.get_version(&version), "asking NCCL for its version"));
  if (version < kLeastVersion) {
    return absl::FailedPreconditionError(absl::StrCat("NCCL has version ", version,
                                                      "; this worker needs ", kLeastVersion,
                                                      " (2.18) or a later one"));
  }
  return nccl;
}

}  // namespace

absl::StatusOr<const NcclLibrary*> NcclLibrary::Load() {
  // Never closed: its threads go on.
  static const auto* const nccl = new absl::StatusOr<NcclLibrary>(Open());
  RETURN_IF_ERROR(nccl->status());
  return &**nccl;
}

absl::Status NcclLibrary::Check(int result, absl::string_view what) const {
  if (result == kNcclSuccess) return absl::OkStatus();
  const char* const detail = get_last_error == nullptr ? nullptr : get_last_error(nullptr);
  return absl::UnavailableError(absl::StrCat(what, ": NCCL: ", get_error_string(result),
                                             detail == nullptr || *detail == '\0' ? "" : ": ",
                                             detail == nullptr ? "" : detail));
}

}  // namespace causeway::worker::cuda
