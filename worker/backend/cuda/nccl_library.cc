#include "worker/backend/cuda/nccl.h"
#include "worker/backend/cuda/opened_library.h"

namespace causeway::worker::cuda {
namespace {

constexpr int kLeastVersion = 21800;  // 2.18

absl::StatusOr<NcclLibrary> Open() {
  ASSIGN_OR_RETURN(
      const OpenedLibrary library,
      OpenedLibrary::Open(
          {.what = "several GPUs need NCCL, which was not found",
           .names = UsualPlaces("libnccl.so.2"),
           .remedy = "install libnccl.so.2 (of the CUDA Toolkit's repository) or name its folder "
                     "in LD_LIBRARY_PATH, or use one GPU",
           .other_version = "install NCCL 2.18 or a later one"}));
  NcclLibrary nccl;
  RETURN_IF_ERROR(library.Find({{"ncclGetVersion", nccl.get_version},
                                {"ncclGetUniqueId", nccl.get_unique_id},
                                {"ncclCommInitRank", nccl.comm_init_rank},
                                {"ncclCommDestroy", nccl.comm_destroy},
                                {"ncclCommAbort", nccl.comm_abort},
                                {"ncclCommGetAsyncError", nccl.comm_get_async_error},
                                {"ncclGetErrorString", nccl.get_error_string},
                                {"ncclGetLastError", nccl.get_last_error},
                                {"ncclGroupStart", nccl.group_start},
                                {"ncclGroupEnd", nccl.group_end},
                                {"ncclReduce", nccl.reduce},
                                {"ncclReduceScatter", nccl.reduce_scatter},
                                {"ncclAllGather", nccl.all_gather},
                                {"ncclBroadcast", nccl.broadcast}}));
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
  static const auto* const nccl = new absl::StatusOr<NcclLibrary>(Open());
  RETURN_IF_ERROR(nccl->status());
  return &**nccl;
}

}  // namespace causeway::worker::cuda
