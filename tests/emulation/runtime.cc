// Memory, streams, events and graphs of the emulated devices, under CUDA's names.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda_runtime.h"
#include "device_emulation.h"
#include "tests/emulation/state.h"

using namespace causeway::emulation;  // NOLINT: what follows is its implementation.

namespace {

thread_local int64_t waits_of_thread = 0;

void CountHostWait() {
  ++TheState().host_waits;
  ++waits_of_thread;
}

const Allocation* Find(const void* pointer) {
  const char* const address = static_cast<const char*>(pointer);
  auto it = TheState().allocations.upper_bound(address);
  if (it == TheState().allocations.begin()) return nullptr;
  --it;
  return address < it->first + it->second.bytes ? &it->second : nullptr;
}

// Whether `bytes` from there on lie in one allocation, or none is known there (ordinary memory).
bool Fits(const void* pointer, size_t bytes) {
  const char* const address = static_cast<const char*>(pointer);
  auto it = TheState().allocations.upper_bound(address);
  if (it == TheState().allocations.begin()) return true;
  --it;
  return address >= it->first + it->second.bytes || address + bytes <= it->first + it->second.bytes;
}

bool OnDevice(const void* pointer) {
  const Allocation* const allocation = Find(pointer);
  return allocation != nullptr && allocation->device >= 0;
}

// The copy's direction is the one that was said.
bool KindFits(const void* to, const void* from, cudaMemcpyKind kind) {
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return OnDevice(to) && !OnDevice(from);
    case cudaMemcpyDeviceToHost:
      return !OnDevice(to) && OnDevice(from);
    case cudaMemcpyDeviceToDevice:
      return OnDevice(to) && OnDevice(from);
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

cudaError_t Allocate(void** pointer, size_t bytes, int device) {
  const std::unique_lock lock(TheState().mutex);
  *pointer = nullptr;
  if (const cudaError_t error = Standing(); error != cudaSuccess) return Note(error);
  UsePresentDevice();
  if (device >= 0) {
    Device& of = TheState().devices[static_cast<size_t>(device)];
    if (of.allocated + bytes > TheState().machine.memory) return Note(cudaErrorMemoryAllocation);
    of.allocated += bytes;
  }
  const size_t size = std::max<size_t>((bytes + 255) / 256 * 256, 256);
  if (device >= 0 && !TheState().machine.computes) {
    void* const addresses =
        mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (addresses == MAP_FAILED) return Note(cudaErrorMemoryAllocation);
    TheState().allocations[static_cast<const char*>(addresses)] = {bytes, device, size};
    *pointer = addresses;
    return cudaSuccess;
  }
  void* const memory = std::aligned_alloc(256, size);
  if (memory == nullptr) return Note(cudaErrorMemoryAllocation);
  std::memset(memory, 0xff, size);  // NaN: whoever reads it before it is written shows it.
  TheState().allocations[static_cast<const char*>(memory)] = {bytes, device, 0};
  ++TheState().allocations_made;
  *pointer = memory;
  return cudaSuccess;
}

cudaError_t Release(void* pointer, bool on_device) {
  if (pointer == nullptr) return cudaSuccess;
  std::unique_lock lock(TheState().mutex);
  const auto it = TheState().allocations.find(static_cast<const char*>(pointer));
  if (it == TheState().allocations.end() || (it->second.device >= 0) != on_device) {
    return Note(cudaErrorInvalidValue);
  }
  Drain(lock, on_device ? it->second.device : present_device);
  if (on_device)
    TheState().devices[static_cast<size_t>(it->second.device)].allocated -= it->second.bytes;
  const size_t absent = it->second.absent;
  TheState().allocations.erase(it);
  if (absent > 0) {
    munmap(pointer, absent);
  } else {
    std::free(pointer);
  }
  return cudaSuccess;
}

}  // namespace

int64_t causeway::emulation::HostWaitsOfThread() { return waits_of_thread; }

const char* cudaGetErrorName(cudaError_t error) {
#define CAUSEWAY_NAMED(error) \
  { error, #error }
  static constexpr std::pair<cudaError_t, const char*> kNames[] = {
      CAUSEWAY_NAMED(cudaSuccess),
      CAUSEWAY_NAMED(cudaErrorInvalidValue),
      CAUSEWAY_NAMED(cudaErrorMemoryAllocation),
      CAUSEWAY_NAMED(cudaErrorInitializationError),
      CAUSEWAY_NAMED(cudaErrorInsufficientDriver),
      CAUSEWAY_NAMED(cudaErrorNoDevice),
      CAUSEWAY_NAMED(cudaErrorInvalidDevice),
      CAUSEWAY_NAMED(cudaErrorNoKernelImageForDevice),
      CAUSEWAY_NAMED(cudaErrorECCUncorrectable),
      CAUSEWAY_NAMED(cudaErrorInvalidResourceHandle),
      CAUSEWAY_NAMED(cudaErrorNotReady),
      CAUSEWAY_NAMED(cudaErrorLaunchFailure),
      CAUSEWAY_NAMED(cudaErrorStreamCaptureUnsupported)};
#undef CAUSEWAY_NAMED
  for (const auto& [known, name] : kNames) {
    if (known == error) return name;
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaDriverGetVersion(int* version) {
  const std::unique_lock lock(TheState().mutex);
  *version = TheState().machine.driver == cudaErrorInsufficientDriver ? 0 : 13000;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  const std::unique_lock lock(TheState().mutex);
  *count = 0;
  if (const cudaError_t error = Standing(); error != cudaSuccess) return Note(error);
  if (TheState().machine.devices == 0) return Note(cudaErrorNoDevice);
  *count = TheState().machine.devices;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  const std::unique_lock lock(TheState().mutex);
  if (const cudaError_t error = Standing(); error != cudaSuccess) return Note(error);
  if (device < 0 || device >= TheState().machine.devices) return Note(cudaErrorInvalidDevice);
  present_device = device;
  UsePresentDevice();
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = present_device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  const std::unique_lock lock(TheState().mutex);
  if (device < 0 || device >= TheState().machine.devices) return Note(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "Emulated device");
  properties->totalGlobalMem = TheState().machine.memory;
  properties->sharedMemPerBlock = 48 * 1024;
  properties->sharedMemPerBlockOptin = 227 * 1024;
  properties->sharedMemPerMultiprocessor = 228 * 1024;
  properties->major = TheState().machine.major;
  properties->minor = TheState().machine.minor;
  properties->multiProcessorCount = 4;
  properties->l2CacheSize = 1 << 20;
  properties->memoryBusWidth = 64;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  std::unique_lock lock(TheState().mutex);
  CountHostWait();
  Drain(lock, present_device);
  return Note(Standing());
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  const std::unique_lock lock(TheState().mutex);
  *total = TheState().machine.memory;
  *free_bytes =
      TheState().machine.memory - TheState().devices[static_cast<size_t>(present_device)].allocated;
  return Note(Standing());
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return Allocate(pointer, bytes, present_device);
}
cudaError_t cudaFree(void* pointer) { return Release(pointer, true); }
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  return Allocate(pointer, bytes, -1);
}
cudaError_t cudaFreeHost(void* pointer) { return Release(pointer, false); }

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  std::unique_lock lock(TheState().mutex);
  if (const cudaError_t error = Standing(); error != cudaSuccess) return Note(error);
  if (!KindFits(to, from, kind) || !Fits(to, bytes) || !Fits(from, bytes)) {
    return Note(cudaErrorInvalidValue);
  }
  if (bytes == 0) return cudaSuccess;  // Both may be null.
  if (!TheState().machine.computes) return cudaSuccess;
  stream = StreamOf(stream);
  if (Find(from) == nullptr && OnDevice(to)) {
    // From ordinary memory: it may change as soon as this returns.
    auto copy = std::make_shared<std::vector<char>>(static_cast<const char*>(from),
                                                    static_cast<const char*>(from) + bytes);
    Issue(lock, stream, [=] { std::memcpy(to, copy->data(), bytes); });
    return cudaSuccess;
  }
  Issue(lock, stream, [=] { std::memmove(to, from, bytes); });
  if (Find(to) == nullptr && stream->capture == nullptr) {  // To ordinary memory: it waits.
    CountHostWait();
    Run(lock, stream);
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return error != cudaSuccess ? error : cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  std::unique_lock lock(TheState().mutex);
  if (const cudaError_t error = Standing(); error != cudaSuccess) return Note(error);
  if (!OnDevice(memory) || !Fits(memory, bytes)) return Note(cudaErrorInvalidValue);
  IssueWork(lock, StreamOf(stream), [=] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  return cudaMemsetAsync(memory, value, bytes, nullptr);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  const std::unique_lock lock(TheState().mutex);
  *stream = nullptr;
  if (const cudaError_t error = Standing(); error != cudaSuccess) return Note(error);
  *stream = new CUstream_st();
  (*stream)->device = present_device;
  UsePresentDevice().streams.push_back(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::unique_lock lock(TheState().mutex);
  if (stream == nullptr) return Note(cudaErrorInvalidResourceHandle);
  Run(lock, stream);
  std::erase(TheState().devices[static_cast<size_t>(stream->device)].streams, stream);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  std::unique_lock lock(TheState().mutex);
  stream = StreamOf(stream);
  if (stream->capture != nullptr) return Note(cudaErrorStreamCaptureUnsupported);
  CountHostWait();
  Run(lock, stream);
  return Note(Standing());
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  std::unique_lock lock(TheState().mutex);
  if (const cudaError_t error = Standing(); error != cudaSuccess) return Note(error);
  stream = StreamOf(stream);
  if (event->capture != nullptr) {
    // The stream joins the capture. Order of capture is order of running: nothing else to do.
    stream->capture = event->capture;
    event->capture->streams.push_back(stream);
    return cudaSuccess;
  }
  if (event->recorded == 0) return cudaSuccess;
  if (stream->capture != nullptr) return Note(cudaErrorStreamCaptureUnsupported);
  IssueWait(lock, stream, event);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const std::unique_lock lock(TheState().mutex);
  *event = nullptr;
  if (const cudaError_t error = Standing(); error != cudaSuccess) return Note(error);
  *event = new CUevent_st();
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  std::unique_lock lock(TheState().mutex);
  if (event == nullptr) return Note(cudaErrorInvalidResourceHandle);
  Drain(lock, present_device);  // Streams may still hold waits for it.
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  std::unique_lock lock(TheState().mutex);
  if (const cudaError_t error = Standing(); error != cudaSuccess) return Note(error);
  stream = StreamOf(stream);
  event->capture = stream->capture;
  if (stream->capture != nullptr) {
    stream->capture->events.push_back(event);
    return cudaSuccess;
  }
  event->stream = stream;
  const uint64_t record = ++event->recorded;
  Issue(lock, stream, [event, record] {
    const std::unique_lock inner(TheState().mutex);
    event->reached = record;
    event->time = std::chrono::steady_clock::now();
  });
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  std::unique_lock lock(TheState().mutex);
  CountHostWait();
  if (event->reached < event->recorded) Run(lock, event->stream, event, event->recorded);
  return Note(Standing());
}

// Whoever asks again and again would wait for ever if nothing ran meanwhile: what was not reached
// is so when it is asked for again.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  std::unique_lock lock(TheState().mutex);
  if (const cudaError_t error = Standing(); error != cudaSuccess) return Note(error);
  if (event->reached >= event->recorded) return cudaSuccess;
  Run(lock, event->stream, event, event->recorded);
  return Note(cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const std::unique_lock lock(TheState().mutex);
  if (begin->reached == 0 || end->reached == 0) return Note(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const std::unique_lock lock(TheState().mutex);
  if (stream == nullptr || stream->capture != nullptr) {
    return Note(cudaErrorStreamCaptureUnsupported);
  }
  stream->capture = new CUgraph_st();
  stream->capture->streams.push_back(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::unique_lock lock(TheState().mutex);
  *graph = stream->capture;
  if (stream->capture == nullptr) return Note(cudaErrorInvalidValue);
  for (const cudaStream_t captured : (*graph)->streams) captured->capture = nullptr;
  for (const cudaEvent_t event : (*graph)->events) event->capture = nullptr;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{std::make_shared<const std::vector<Operation>>(graph->operations)};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  {
    const std::unique_lock lock(TheState().mutex);
    if (const cudaError_t error = Standing(); error != cudaSuccess) return Note(error);
  }
  Enqueue(stream, [operations = exec->operations] {
    for (const Operation& operation : *operations) operation();
  });
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

cudaError_t EmulatedFuncGetAttributes(cudaFuncAttributes* attributes) {
  const std::unique_lock lock(TheState().mutex);
  *attributes = {};
  if (!TheState().machine.image) return Note(cudaErrorNoKernelImageForDevice);
  attributes->binaryVersion = TheState().machine.major * 10 + TheState().machine.minor;
  attributes->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}
