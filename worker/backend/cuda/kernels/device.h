// The host's hold on a GPU: its memory by purpose, streams, events and graphs, with errors as
// absl::Status. Kernels are elsewhere (*.cu).
//
// The runtime's present device is the calling thread's: one thread serves one GPU, and calls
// UseDevice before anything else here.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
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

absl::Status UseDevice(int index);

// One GPU's memory, in named arenas, so that running out of it says who needs how much. Freed
// together. Not thread-safe.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

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
  std::vector<void*> blocks_;
};

// Page-locked host memory that copies run to and from beside computing. Movable.
template <typename T>
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  static absl::StatusOr<PinnedBuffer> Create(size_t count) {
    PinnedBuffer buffer;
    const size_t bytes = (count == 0 ? 1 : count) * sizeof(T);
    const absl::Status status =
        CheckCuda(cudaHostAlloc(&buffer.data_, bytes, cudaHostAllocPortable),
                  "allocating page-locked memory");
    if (!status.ok()) return status;
    buffer.size_ = count;
    return buffer;
  }
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~PinnedBuffer() {
    if (data_ != nullptr) (void)cudaFreeHost(data_);
  }
  T* data() const { return data_; }
  size_t size() const { return size_; }
  T& operator[](size_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

// A stream that waits for no other by itself. Movable.
class Stream {
 public:
  Stream() = default;
  // `urgent`: its kernels go ahead of others that wait for the same multiprocessors.
  static absl::StatusOr<Stream> Create(bool urgent = false);
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~Stream();
  cudaStream_t get() const { return stream_; }
  absl::Status Wait(absl::string_view what) const {
    return CheckCuda(cudaStreamSynchronize(stream_), what);
  }

 private:
  cudaStream_t stream_ = nullptr;
};

// A point of a stream's work. Movable.
class Event {
 public:
  Event() = default;
  // `sleeps`: a thread that waits for it leaves its processor to others.
  static absl::StatusOr<Event> Create(bool timing = false, bool sleeps = false);
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event();
  cudaEvent_t get() const { return event_; }
  absl::Status Record(cudaStream_t stream) const {
    return CheckCuda(cudaEventRecord(event_, stream), "recording an event");
  }
  // Makes `stream`'s later work begin after this event's last record; no host waits.
  absl::Status HoldUp(cudaStream_t stream) const {
    return CheckCuda(cudaStreamWaitEvent(stream, event_, 0), "making a stream wait for an event");
  }
  // The host waits, unless it is reached.
  absl::Status Wait(absl::string_view what) const {
    return IsReached() ? CheckCuda(cudaEventQuery(event_), what)
                       : CheckCuda(cudaEventSynchronize(event_), what);
  }
  // False while its last record is still to come. An error counts as reached: Wait says it.
  bool IsReached() const {
    if (cudaEventQuery(event_) != cudaErrorNotReady) return true;
    (void)cudaGetLastError();  // It would be the next launch's.
    return false;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Work that was recorded once and is started as a whole. Movable.
class Graph {
 public:
  Graph() = default;
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
  Graph(Graph&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(exec_, other.exec_);
    return *this;
  }
  ~Graph();
  bool recorded() const { return exec_ != nullptr; }
  absl::Status Start(cudaStream_t stream) const {
    return CheckCuda(cudaGraphLaunch(exec_, stream), "starting a graph");
  }

 private:
  static absl::StatusOr<Graph> End(cudaStream_t stream, const absl::Status& issued);
  cudaGraphExec_t exec_ = nullptr;
};

// Whether this program has machine code for a GPU.

// Whether the present device runs this code: cudaErrorNoKernelImageForDevice if not.
cudaError_t ProbeMachineCode();

}  // namespace causeway::worker::cuda
