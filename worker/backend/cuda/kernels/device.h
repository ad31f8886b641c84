// The host's hold on a GPU: its memory by purpose, streams, events and graphs, with errors as
// absl::Status. Kernels are elsewhere (*.cu).
//
// The runtime's present device is the calling thread's: one thread serves one GPU, and calls
// UseDevice before anything else here.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/file_system.h"

namespace causeway::worker::cuda {

// OK, or the runtime's error as a status: RESOURCE_EXHAUSTED out of memory, FAILED_PRECONDITION
// without a usable driver or machine code, UNAVAILABLE for a GPU that is lost (its process cannot
// use it again). `what` was being done.
absl::Status CheckCuda(cudaError_t error, absl::string_view what);
// The error of a launch before, if there was one, which it then forgets.
absl::Status CheckLaunches(absl::string_view what);

// Enqueues a copy of `count` values, which may lie on the host or on a device.
template <typename T>
absl::Status CopyAsync(T* to, const T* from, int64_t count, cudaStream_t stream,
                       absl::string_view what) {
  if (count == 0) return absl::OkStatus();
  const size_t bytes = static_cast<size_t>(count) * sizeof(T);
  return CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), what);
}
// Enqueues zeros in place of `count` values of the device.
template <typename T>
absl::Status ClearAsync(T* values, int64_t count, cudaStream_t stream, absl::string_view what) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(T);
  return CheckCuda(cudaMemsetAsync(values, 0, bytes, stream), what);
}

// Gives back by `kDestroy` what the runtime gave.
template <auto kDestroy>
struct Destroy {
  template <typename T>
  void operator()(T* handle) const {
    (void)kDestroy(handle);
  }
};
template <typename Handle, auto kDestroy>
using OwnedHandle = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<kDestroy>>;

struct DeviceInfo {
  int index = 0;
  std::string name;
  int major = 0, minor = 0;  // Compute capability.
  int multiprocessors = 0;
  size_t memory = 0;  // Bytes.
};

// The GPUs of this machine that this program can use, all of them or those of `indices`.
// FAILED_PRECONDITION where there are none: what was looked for, what was found, and how to go on
// without; also for one that this program has no machine code for. INVALID_ARGUMENT for an index
// that does not exist. `files` is asked for the driver's traces alone.
absl::StatusOr<std::vector<DeviceInfo>> DiscoverDevices(const std::vector<int>& indices,
                                                        FileSystem& files);
// The numbers alone, without using any: DiscoverDevices takes some of each GPU's memory for this
// process. The same errors, but for machine code.
absl::StatusOr<std::vector<int>> ListDevices(const std::vector<int>& indices, FileSystem& files);
// "NVIDIA H100 80GB HBM3" or "2 x NVIDIA H100 80GB HBM3".
std::string DescribeDevices(const std::vector<DeviceInfo>& devices);

// "it speaks CUDA 12.4 at most; ... needs CUDA 13.0", of the driver and of `what`; or that there is
// no driver, or one that is too old.
std::string DriverAndNeed(absl::string_view what);

absl::Status UseDevice(int index);

// One GPU's memory, in named arenas, so that running out of it says who needs how much. Freed
// together. Not thread-safe.
class DeviceMemory {
 public:
  // `count` values at a multiple of 256 bytes, not initialized. `arena` says what for, `lower`
  // which setting makes it smaller (empty: none does). RESOURCE_EXHAUSTED lists all arenas so far,
  // what this one needs, what is free, and what lowers them.
  template <typename T>
  absl::StatusOr<T*> Allocate(absl::string_view arena, int64_t count, absl::string_view lower) {
    absl::StatusOr<void*> memory =
        AllocateBytes(arena, static_cast<size_t>(count) * sizeof(T), lower);
    if (!memory.ok()) return memory.status();
    return static_cast<T*>(*memory);
  }
  // The same with a copy of `values`; waits for the stream.
  template <typename T>
  absl::StatusOr<T*> Upload(absl::string_view arena, const std::vector<T>& values,
                            absl::string_view lower, cudaStream_t stream) {
    const auto count = static_cast<int64_t>(values.size());
    absl::StatusOr<T*> memory = Allocate<T>(arena, count, lower);
    if (!memory.ok()) return memory;
    const absl::Status copied = CopyAsync(*memory, values.data(), count, stream, arena);
    if (!copied.ok()) return copied;
    const absl::Status waited = CheckCuda(cudaStreamSynchronize(stream), arena);
    if (!waited.ok()) return waited;
    return memory;
  }
  size_t bytes() const;

 private:
  struct Arena {
    std::string name;
    std::string lower;
    size_t bytes = 0;
  };
  absl::StatusOr<void*> AllocateBytes(absl::string_view arena, size_t bytes,
                                      absl::string_view lower);
  std::string Describe() const;

  std::vector<Arena> arenas_;
  std::vector<OwnedHandle<void*, cudaFree>> blocks_;
};

// Page-locked host memory that copies run to and from beside computing. Movable.
template <typename T>
class PinnedBuffer {
 public:
  static absl::StatusOr<PinnedBuffer> Create(size_t count) {
    T* data = nullptr;
    const size_t bytes = (count == 0 ? 1 : count) * sizeof(T);
    const absl::Status status = CheckCuda(cudaHostAlloc(&data, bytes, cudaHostAllocPortable),
                                          "allocating page-locked memory");
    if (!status.ok()) return status;
    PinnedBuffer buffer;
    buffer.data_.reset(data);
    buffer.size_ = count;
    return buffer;
  }
  T* data() const { return data_.get(); }
  size_t size() const { return size_; }
  T& operator[](size_t i) const { return data_.get()[i]; }

 private:
  OwnedHandle<T*, cudaFreeHost> data_;
  size_t size_ = 0;
};

// A stream that waits for no other by itself. Movable.
class Stream {
 public:
  // `urgent`: its kernels go ahead of others that wait for the same multiprocessors.
  static absl::StatusOr<Stream> Create(bool urgent = false);
  cudaStream_t get() const { return stream_.get(); }
  absl::Status Wait(absl::string_view what) const {
    return CheckCuda(cudaStreamSynchronize(stream_.get()), what);
  }

 private:
  OwnedHandle<cudaStream_t, cudaStreamDestroy> stream_;
};

// A point of a stream's work. Movable.
class Event {
 public:
  // `sleeps`: a thread that waits for it leaves its processor to others.
  static absl::StatusOr<Event> Create(bool timing = false, bool sleeps = false);
  cudaEvent_t get() const { return event_.get(); }
  absl::Status Record(cudaStream_t stream) const {
    return CheckCuda(cudaEventRecord(event_.get(), stream), "recording an event");
  }
  // Makes `stream`'s later work begin after this event's last record; no host waits.
  absl::Status HoldUp(cudaStream_t stream) const {
    return CheckCuda(cudaStreamWaitEvent(stream, event_.get(), 0),
                     "making a stream wait for an event");
  }
  // The host waits, unless it is reached.
  absl::Status Wait(absl::string_view what) const {
    return IsReached() ? CheckCuda(cudaEventQuery(event_.get()), what)
                       : CheckCuda(cudaEventSynchronize(event_.get()), what);
  }
  // Waits for this event and says how long after `earlier`, of the same stream, it came. Both were
  // made for timing.
  absl::StatusOr<double> SecondsSince(const Event& earlier) const;
  // False while its last record is still to come. An error counts as reached: Wait says it.
  bool IsReached() const {
    if (cudaEventQuery(event_.get()) != cudaErrorNotReady) return true;
    (void)cudaGetLastError();  // It would be the next launch's.
    return false;
  }

 private:
  OwnedHandle<cudaEvent_t, cudaEventDestroy> event_;
};

// Work that was recorded once and is started as a whole. Movable.
class Graph {
 public:
  // Records what `issue` gives to `stream`, which runs none of it. Other streams take part where
  // events join them to it and back.
  template <typename Issue>
  static absl::StatusOr<Graph> Record(cudaStream_t stream, const Issue& issue) {
    absl::Status status =
        CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                  "beginning to record a graph");
    if (!status.ok()) return status;
    status = issue();
    return End(stream, status);
  }
  bool recorded() const { return exec_ != nullptr; }
  absl::Status Start(cudaStream_t stream) const {
    return CheckCuda(cudaGraphLaunch(exec_.get(), stream), "starting a graph");
  }

 private:
  static absl::StatusOr<Graph> End(cudaStream_t stream, const absl::Status& issued);
  OwnedHandle<cudaGraphExec_t, cudaGraphExecDestroy> exec_;
};

// Whether this program has machine code for a GPU.

// Whether the present device runs this code: cudaErrorNoKernelImageForDevice if not.
cudaError_t ProbeMachineCode();

}  // namespace causeway::worker::cuda
