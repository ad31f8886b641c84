// The work of streams, and what tests set.
#include "tests/emulation/state.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <utility>

#include "device_emulation.h"
#include "tests/emulation/order.h"

namespace causeway::emulation {

thread_local int present_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

namespace {

std::condition_variable changed;
Order order = Order::kForward;
uint64_t order_seed = 1;
bool eager = false;
int64_t kernels_before_failure = -1;
cudaError_t failure = cudaSuccess;  // That comes then.

}  // namespace

State& TheState() {
  static State state;
  return state;
}

cudaError_t Note(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t Standing() {
  if (TheState().machine.driver != cudaSuccess) return TheState().machine.driver;
  return TheState().sticky;
}

cudaStream_t StreamOf(cudaStream_t stream) {
  if (stream != nullptr) return stream;
  cudaStream_t null_stream =
      TheState().devices[static_cast<size_t>(present_device)].null_stream.get();
  null_stream->device = present_device;
  return null_stream;
}

void Run(std::unique_lock<std::mutex>& lock, cudaStream_t stream, cudaEvent_t event,
         uint64_t record) {
  const auto done = [&] {
    return event != nullptr ? event->reached >= record : stream->items.empty() && !stream->running;
  };
  while (!done()) {
    if (stream->running) {
      changed.wait(lock);
      continue;
    }
    if (stream->items.empty()) {
      std::fprintf(stderr, "emulated device: waits for an event that nothing will record\n");
      std::abort();
    }
    CUstream_st::Item item = std::move(stream->items.front());
    stream->items.pop_front();
    stream->running = true;
    if (item.operation == nullptr) {
      if (item.event->reached < item.record) Run(lock, item.recorded_in, item.event, item.record);
    } else {
      lock.unlock();
      item.operation();
      lock.lock();
    }
    stream->running = false;
    changed.notify_all();
  }
}

void Drain(std::unique_lock<std::mutex>& lock, int device) {
  Device& of = TheState().devices[static_cast<size_t>(device)];
  std::vector<cudaStream_t> streams = of.streams;
  streams.push_back(of.null_stream.get());
  std::vector<int> turns(streams.size());
  std::iota(turns.begin(), turns.end(), 0);
  if (order == Order::kBackward) std::reverse(turns.begin(), turns.end());
  if (order == Order::kShuffled) {
    std::shuffle(turns.begin(), turns.end(), std::mt19937_64(order_seed));
  }
  for (const int turn : turns) Run(lock, streams[static_cast<size_t>(turn)]);
}

void Issue(std::unique_lock<std::mutex>& lock, cudaStream_t stream, Operation operation) {
  if (stream->capture != nullptr) {
    stream->capture->operations.push_back(std::move(operation));
    return;
  }
  stream->items.push_back({.operation = std::move(operation)});
  if (eager) Run(lock, stream);
}

void IssueWork(std::unique_lock<std::mutex>& lock, cudaStream_t stream, Operation operation) {
  if (TheState().machine.computes) Issue(lock, stream, std::move(operation));
}

void IssueWait(std::unique_lock<std::mutex>& lock, cudaStream_t stream, cudaEvent_t event) {
  stream->items.push_back({.operation = nullptr,
                           .event = event,
                           .record = event->recorded,
                           .recorded_in = event->stream});
  if (eager) Run(lock, stream);
}

void SetMachine(const Machine& new_machine) {
  const std::unique_lock lock(TheState().mutex);
  TheState().machine = new_machine;
  for (const Device& device : TheState().devices) {
    if (device.allocated == 0 && device.streams.empty()) continue;
    std::fprintf(stderr, "emulated device: SetMachine while the former one is in use\n");
    std::abort();
  }
  TheState().devices =
      std::vector<Device>(static_cast<size_t>(std::max(TheState().machine.devices, 1)));
  TheState().sticky = cudaSuccess;
  last_error = cudaSuccess;
  kernels_before_failure = -1;
  present_device = 0;
}

void SetOrder(Order new_order, uint64_t seed) {
  const std::unique_lock lock(TheState().mutex);
  order = new_order;
  order_seed = seed;
}

void SetEager(bool on) {
  const std::unique_lock lock(TheState().mutex);
  eager = on;
}

void FailAfterKernels(int64_t count, cudaError_t error) {
  const std::unique_lock lock(TheState().mutex);
  kernels_before_failure = count;
  failure = error;
}

size_t AllocatedBytes(int device) {
  const std::unique_lock lock(TheState().mutex);
  return TheState().devices[static_cast<size_t>(device)].allocated;
}

int64_t KernelsLaunched() {
  const std::unique_lock lock(TheState().mutex);
  return TheState().kernels;
}

bool HasContext(int device) {
  const std::unique_lock lock(TheState().mutex);
  return TheState().devices[static_cast<size_t>(device)].used;
}

Device& UsePresentDevice() {
  Device& device = TheState().devices[static_cast<size_t>(present_device)];
  device.used = true;
  return device;
}

int64_t AllocationsMade() {
  const std::unique_lock lock(TheState().mutex);
  return TheState().allocations_made;
}

int64_t HostWaits() {
  const std::unique_lock lock(TheState().mutex);
  return TheState().host_waits;
}

std::vector<int> Permutation(int size, uint64_t salt) {
  std::vector<int> permutation(static_cast<size_t>(size));
  std::iota(permutation.begin(), permutation.end(), 0);
  const std::unique_lock lock(TheState().mutex);
  if (order == Order::kBackward) std::reverse(permutation.begin(), permutation.end());
  if (order == Order::kShuffled) {
    std::shuffle(permutation.begin(), permutation.end(), std::mt19937_64(order_seed + salt));
  }
  return permutation;
}

void Enqueue(cudaStream_t stream, std::function<void()> operation) {
  std::unique_lock lock(TheState().mutex);
  IssueWork(lock, StreamOf(stream), std::move(operation));
}

void LaunchKernel(dim3 grid, dim3 block_shape, size_t shared_bytes, cudaStream_t stream,
                  std::function<void()> thread) {
  std::unique_lock lock(TheState().mutex);
  const size_t threads = size_t{block_shape.x} * block_shape.y * block_shape.z;
  if (!TheState().machine.image) {
    Note(cudaErrorNoKernelImageForDevice);
    return;
  }
  // Blocks of whole warps: what shuffles with full masks need. The limits are CUDA's.
  if (threads == 0 || threads > 1024 || threads % 32 != 0 || shared_bytes > 227 * 1024 ||
      grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535) {
    Note(cudaErrorInvalidValue);
    return;
  }
  ++TheState().kernels;
  if (kernels_before_failure >= 0 && kernels_before_failure-- == 0) TheState().sticky = failure;
  if (TheState().sticky != cudaSuccess) {
    Note(TheState().sticky);
    return;
  }
  IssueWork(lock, StreamOf(stream),
            [=, body = std::move(thread)] { RunGrid(grid, block_shape, shared_bytes, body); });
}

}  // namespace causeway::emulation
