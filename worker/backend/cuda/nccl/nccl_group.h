// A LocalGroup of GPUs, of one host or several, by NCCL.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_NCCL_NCCL_GROUP_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_NCCL_NCCL_GROUP_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/backend/cuda/device/device.h"
#include "worker/backend/cuda/nccl/nccl_library.h"
#include "worker/group/local_group.h"
#include "worker/group/shared_cause.h"

namespace causeway::worker::cuda {

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
  absl::Status AllReduceSum(void* data, int64_t count, GroupType type, GroupStream stream) override;
  absl::Status ReduceScatterSum(void* data, std::span<const int64_t> bounds, GroupType type,
                                GroupStream stream) override;
  absl::Status AllGather(void* data, std::span<const int64_t> bounds, GroupType type,
                         GroupStream stream) override;
  absl::Status Broadcast(void* data, int64_t count, GroupType type, int root,
                         GroupStream stream) override;
  absl::Status BeginBatch() override;
  absl::Status EndBatch() override;
  absl::Status Barrier() override;
  void Abort(const absl::Status& cause) override;
  absl::Status status() const override { return options_.cause->Get(); }

 private:
  NcclGroup(Options options, NcclComm comm);
  // Issues what `call` gives to the communicator, unless there is a cause.
  template <typename Issue>
  absl::Status Do(const char* what, const Issue& issue);
  void Watch();

  const Options options_;
  const NcclLibrary& nccl_;
  Stream barrier_stream_;
  DeviceMemory memory_;
  int64_t* barrier_value_ = nullptr;

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

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_NCCL_NCCL_GROUP_H_
