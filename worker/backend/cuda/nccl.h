// NCCL, looked for at run time: a worker without it runs everywhere, on one GPU. Declared here as
// far as it is used, because its header is no part of a distribution; the numbers are those of its
// stable interface (version 2).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/backend/cuda/kernels/device.h"
#include "worker/sync/local_group.h"

namespace causeway::worker::cuda {

struct NcclId {
  char bytes[128] = {};
};
using NcclComm = struct OpaqueNcclComm*;

enum NcclResult : int { kNcclSuccess = 0, kNcclInProgress = 7 };
enum NcclType : int { kNcclFloat = 7, kNcclDouble = 8, kNcclBf16 = 9 };
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
  int (*reduce)(const void* from, void* to, size_t count, int type, int operation, int root,
                NcclComm comm, cudaStream_t stream) = nullptr;
  int (*reduce_scatter)(const void* from, void* to, size_t count_each, int type, int operation,
                        NcclComm comm, cudaStream_t stream) = nullptr;
  int (*all_gather)(const void* from, void* to, size_t count_each, int type, NcclComm comm,
                    cudaStream_t stream) = nullptr;
  int (*broadcast)(const void* from, void* to, size_t count, int type, int root, NcclComm comm,
                   cudaStream_t stream) = nullptr;
};

// A LocalGroup of GPUs, of one host or several, by NCCL.

// A watching thread asks NCCL for errors that came after an operation had been issued. Once there
// is a cause, here or in `cause`, the communicator is aborted: kernels that wait for other ranks
// end, and so does whoever waits for a stream.
class NcclGroup final : public LocalGroup {
 public:
  struct Options {
    const NcclLibrary* nccl = nullptr;  // Outlives the group.
    NcclId id;                          // The same on every rank: of nccl->get_unique_id, once.
    int rank = 0;
    int size = 1;
    int device = 0;
    std::shared_ptr<SharedCause> cause;  // Shared by all ranks of the process.
    // Time that all ranks have to come together: a host that is lost meanwhile is noticed so late.
    absl::Duration patience = absl::Minutes(5);
    absl::Duration watch_interval = absl::Milliseconds(200);
  };
  // On the rank's own thread, all ranks at the same time. DEADLINE_EXCEEDED, or ABORTED with the
  // cause: a thread that waits in NCCL then stays behind, and the process should end.
  static absl::StatusOr<std::unique_ptr<NcclGroup>> Create(Options options);
  ~NcclGroup() override;

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  absl::Status ReduceScatterSum(void* data, std::span<const int64_t> bounds, GroupType type,
                                GroupStream stream) override;
  absl::Status AllGather(void* data, std::span<const int64_t> bounds, GroupType type,
                         GroupStream stream) override;
  absl::Status Broadcast(void* data, int64_t count, GroupType type, int root,
                         GroupStream stream) override;
  absl::Status BeginBatch() override;
  absl::Status EndBatch() override;
  void Abort(const absl::Status& cause) override;
  absl::Status status() const override { return options_.cause->Get(); }

 private:
  NcclGroup(Options options, NcclComm comm);
  // Issues what `call` gives to the communicator, unless there is a cause.
  template <typename Issue>
  absl::Status Do(const char* what, const Issue& issue);
  // The same of pieces: `whole` where they are equal, else `of_root` for each rank's that has
  // values.
  template <typename Whole, typename OfRoot>
  absl::Status DoPieces(const char* what, void* data, std::span<const int64_t> bounds,
                        GroupType type, const Whole& whole, const OfRoot& of_root);
  void Watch();

  const Options options_;
  const NcclLibrary& nccl_;

  absl::Mutex mutex_;
  NcclComm comm_ ABSL_GUARDED_BY(mutex_);  // Null once it is aborted.
  bool issuing_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watcher_;  // Last.
};

// The groups of the GPUs of this process, rank i on devices[i]: all the ranks that there are, or,
// with an `id` that the first of several processes made, those from `first_rank` on of `size`.
// Errors of NcclLibrary::Load and NcclGroup::Create.
struct NcclSite {
  NcclId id;
  int first_rank = 0;
  int size = 0;
  std::shared_ptr<SharedCause> cause;
};
absl::StatusOr<std::vector<std::unique_ptr<LocalGroup>>> MakeNcclGroups(
    const std::vector<int>& devices);
absl::StatusOr<std::vector<std::unique_ptr<LocalGroup>>> MakeNcclGroups(
    const NcclLibrary& nccl, const std::vector<int>& devices, const NcclSite& site);

}  // namespace causeway::worker::cuda
