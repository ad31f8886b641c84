// Inside the emulator: devices, what they hold, and how the work of streams is done.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda_runtime.h"
#include "tests/emulation/emulator.h"

namespace causeway::emulation {
using Operation = std::function<void()>;
}  // namespace causeway::emulation

struct CUgraph_st {
  std::vector<causeway::emulation::Operation> operations;  // In the order of their capture.
  std::vector<cudaStream_t> streams;  // That are being captured into it, the origin first.
  std::vector<cudaEvent_t> events;    // Recorded in it.
};

struct CUgraphExec_st {
  std::shared_ptr<const std::vector<causeway::emulation::Operation>> operations;
};

struct CUevent_st {
  cudaStream_t stream = nullptr;  // Recorded last there.
  uint64_t recorded = 0;          // Records that were issued, and that took place.
  uint64_t reached = 0;
  std::chrono::steady_clock::time_point time;
  cudaGraph_t capture = nullptr;  // Recorded last while that was captured.
};

struct CUstream_st {
  struct Item {
    causeway::emulation::Operation operation;  // Null: wait for the event.
    cudaEvent_t event = nullptr;
    uint64_t record = 0;
    cudaStream_t recorded_in = nullptr;
  };
  int device = 0;
  std::deque<Item> items;
  bool running = false;  // By some host thread.
  cudaGraph_t capture = nullptr;
};

namespace causeway::emulation {

struct Device {
  std::unique_ptr<CUstream_st> null_stream = std::make_unique<CUstream_st>();
  std::vector<cudaStream_t> streams;
  size_t allocated = 0;
  bool used = false;
};

struct Allocation {
  size_t bytes = 0;
  int device = -1;    // -1: pinned host memory.
  size_t absent = 0;  // Bytes of addresses without memory behind them, or 0.
};

// All of it guarded by the mutex.
struct State {
  std::mutex mutex;
  Machine machine;
  std::vector<Device> devices = std::vector<Device>(1);
  std::map<const char*, Allocation> allocations;
  int64_t kernels = 0;
  int64_t allocations_made = 0;
  int64_t host_waits = 0;
  cudaError_t sticky = cudaSuccess;  // Error of a lost device.
};
State& TheState();

// The calling thread's.
extern thread_local int present_device;
extern thread_local cudaError_t last_error;

// Remembers an error as the thread's last one, and returns it.
cudaError_t Note(cudaError_t error);

// The functions below want the mutex held.

// Calls make things on the present device, which is in use from then on.
Device& UsePresentDevice();
// Success, or what every call answers now.
cudaError_t Standing();
// The stream, or the present device's own.
cudaStream_t StreamOf(cudaStream_t stream);
// Runs what `stream` holds until it is empty, or until `event` has been reached. `lock`, which
// holds the mutex, is released while an operation runs.
void Run(std::unique_lock<std::mutex>& lock, cudaStream_t stream, cudaEvent_t event = nullptr,
         uint64_t record = 0);
// Runs all streams of a device, in SetOrder's order.
void Drain(std::unique_lock<std::mutex>& lock, int device);
// Adds to the stream, or to the graph that is captured from it.
void Issue(std::unique_lock<std::mutex>& lock, cudaStream_t stream, Operation operation);
// The same, on a machine that computes.
void IssueWork(std::unique_lock<std::mutex>& lock, cudaStream_t stream, Operation operation);
// Makes the stream wait for a record of an event.
void IssueWait(std::unique_lock<std::mutex>& lock, cudaStream_t stream, cudaEvent_t event);

}  // namespace causeway::emulation
