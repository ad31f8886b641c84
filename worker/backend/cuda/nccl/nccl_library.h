// NCCL, looked for at run time: a worker without it runs everywhere, on one GPU. Declared here as
// far as it is used, because its header is no part of a distribution; the numbers are those of its
// stable interface (version 2).
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_NCCL_NCCL_LIBRARY_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_NCCL_NCCL_LIBRARY_H_

#include <cuda_runtime.h>

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace causeway::worker::cuda {

struct NcclId {
  char bytes[128] = {};
};
using NcclComm = struct OpaqueNcclComm*;

enum NcclResult : int { kNcclSuccess = 0, kNcclInProgress = 7 };
enum NcclType : int {
  kNcclUint8 = 1,
  kNcclInt64 = 4,
  kNcclFloat = 7,
  kNcclDouble = 8,
  kNcclBf16 = 9
};
enum NcclOperation : int { kNcclSum = 0 };

struct NcclLibrary {
  // The process's library; loaded once. FAILED_PRECONDITION with the names that were looked for.
  static absl::StatusOr<const NcclLibrary*> Load();

  // OK, or what NCCL says.
  absl::Status Check(int result, absl::string_view what) const;

  // As ncclGetVersion and so on.
  int (*get_version)(int* version) = nullptr;
  int (*get_unique_id)(NcclId* id) = nullptr;
  int (*comm_init_rank)(NcclComm* comm, int ranks, NcclId id, int rank) = nullptr;
  int (*comm_destroy)(NcclComm comm) = nullptr;
  int (*comm_abort)(NcclComm comm) = nullptr;
  int (*comm_get_async_error)(NcclComm comm, int* result) = nullptr;
  const char* (*get_error_string)(int result) = nullptr;
  const char* (*get_last_error)(NcclComm comm) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*all_reduce)(const void* from, void* to, size_t count, int type, int operation,
                    NcclComm comm, cudaStream_t stream) = nullptr;
  int (*reduce)(const void* from, void* to, size_t count, int type, int operation, int root,
                NcclComm comm, cudaStream_t stream) = nullptr;
  int (*reduce_scatter)(const void* from, void* to, size_t count_each, int type, int operation,
                        NcclComm comm, cudaStream_t stream) = nullptr;
  int (*all_gather)(const void* from, void* to, size_t count_each, int type, NcclComm comm,
                    cudaStream_t stream) = nullptr;
  int (*broadcast)(const void* from, void* to, size_t count, int type, int root, NcclComm comm,
                   cudaStream_t stream) = nullptr;
};

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_NCCL_NCCL_LIBRARY_H_
