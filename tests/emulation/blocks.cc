// Threads of a block as fibers.
#include <algorithm>
#include <array>
#include <boost/context/fiber.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cuda_bf16.h"
#include "cuda_runtime.h"
#include "device_emulation.h"
#include "tests/emulation/emulator.h"
#include "tests/emulation/order.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

thread_local uint3 threadIdx;
thread_local uint3 blockIdx;
thread_local dim3 blockDim(1, 1, 1);
thread_local dim3 gridDim(1, 1, 1);

namespace causeway::emulation {
namespace {

constexpr int kLanes = 32;
constexpr int kWords = 8;  // A lane's operand: pointers take two.
constexpr size_t kStackBytes = size_t{128} << 10;

enum class ThreadState { kReady, kBlockBarrier, kWarpExchange, kDone };
enum class Exchange { kShuffle, kBallot, kBarrier, kMma, kLoadMatrix };

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "emulated kernel: block (%u, %u, %u), thread (%u, %u, %u): %s\n", blockIdx.x,
               blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, what);
  std::abort();
}

// Stacks are taken again: a block has as many as threads.
class StackPool {
 public:
  ~StackPool() {
    for (void* stack : free_) std::free(stack);
  }
  boost::context::stack_context allocate() {
    void* base = nullptr;
    if (free_.empty()) {
      base = std::malloc(kStackBytes);
      if (base == nullptr) Fail("no memory for a thread's stack");
    } else {
      base = free_.back();
      free_.pop_back();
    }
    last_ = base;
    boost::context::stack_context context;
    context.size = kStackBytes;
    context.sp = static_cast<char*>(base) + kStackBytes;
    return context;
  }
  void deallocate(boost::context::stack_context& context) {
    free_.push_back(static_cast<char*>(context.sp) - kStackBytes);
  }
  void* last() const { return last_; }

 private:
  void* last_ = nullptr;
  std::vector<void*> free_;
};

thread_local StackPool stack_pool;

struct StackAllocator {
  boost::context::stack_context allocate() { return stack_pool.allocate(); }
  void deallocate(boost::context::stack_context& context) { stack_pool.deallocate(context); }
};

struct PendingCopy {
  void* shared;
  const void* global;
  size_t bytes, valid;
};

struct Thread {
  boost::context::fiber fiber;
  boost::context::fiber scheduler;
  ThreadState state = ThreadState::kReady;
  Exchange exchange = Exchange::kShuffle;
  int parity = 0;
  uint3 index;
  std::vector<std::vector<PendingCopy>> copies;  // Committed groups, then the open one.
  void* stack_bottom = nullptr;
#ifdef __SANITIZE_THREAD__
  void* tsan = nullptr;
#endif
};

struct Warp {
  // Two, because a lane that goes on may reach the next exchange before others have read this one.
  std::array<std::array<std::array<uint32_t, kWords>, kLanes>, 2> operands;
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<int> order;  // Order of warps, and of the lanes in each.
  std::vector<int> lane_order;
  std::vector<uint64_t> shared;
  const std::function<void()>* body = nullptr;
};

thread_local Block block;
thread_local int current = -1;
#ifdef __SANITIZE_THREAD__
thread_local void* tsan_scheduler = nullptr;
#endif
// The sanitizers want to know when a thread goes on with another stack.
#ifdef __SANITIZE_ADDRESS__
thread_local const void* scheduler_bottom = nullptr;
thread_local size_t scheduler_size = 0;
#endif

void EnterScheduler([[maybe_unused]] void** fake) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(fake, scheduler_bottom, scheduler_size);
#endif
#ifdef __SANITIZE_THREAD__
  __tsan_switch_to_fiber(tsan_scheduler, 0);
#endif
}

void EnteredThread([[maybe_unused]] void* fake) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake, &scheduler_bottom, &scheduler_size);
#endif
}

void Yield(ThreadState state) {
  Thread& self = block.threads[static_cast<size_t>(current)];
  self.state = state;
  void* fake = nullptr;
  EnterScheduler(&fake);
  self.scheduler = std::move(self.scheduler).resume();
  EnteredThread(fake);
}

void StartFiber(Thread& thread) {
  thread.fiber = boost::context::fiber(std::allocator_arg, StackAllocator(),
                                       [&thread](boost::context::fiber&& scheduler) {
                                         EnteredThread(nullptr);
                                         thread.scheduler = std::move(scheduler);
                                         (*block.body)();
                                         thread.state = ThreadState::kDone;
                                         EnterScheduler(nullptr);
                                         return std::move(thread.scheduler);
                                       });
  thread.stack_bottom = stack_pool.last();
#ifdef __SANITIZE_THREAD__
  if (thread.tsan == nullptr) thread.tsan = __tsan_create_fiber(0);
#endif
}

void RunFiber(Thread& thread) {
  current = static_cast<int>(&thread - block.threads.data());
  threadIdx = thread.index;
  [[maybe_unused]] void* fake = nullptr;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&fake, thread.stack_bottom, kStackBytes);
#endif
#ifdef __SANITIZE_THREAD__
  tsan_scheduler = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(thread.tsan, 0);
#endif
  thread.fiber = std::move(thread.fiber).resume();
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

// True if the warp's lanes all wait for the same exchange, which then takes place.
bool ReleaseExchange(size_t warp) {
  Thread* const lanes = &block.threads[warp * kLanes];
  if (!std::all_of(lanes, lanes + kLanes,
                   [](const Thread& t) { return t.state == ThreadState::kWarpExchange; })) {
    return false;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if (lanes[lane].exchange != lanes[0].exchange) {
      threadIdx = lanes[lane].index;
      Fail("the lanes of its warp meet in different shuffles, votes or matrix instructions");
    }
    lanes[lane].state = ThreadState::kReady;
  }
  return true;
}

void RunWarp(size_t warp) {
  Thread* const lanes = &block.threads[warp * kLanes];
  do {
    for (const int lane : block.lane_order) {
      if (lanes[lane].state == ThreadState::kReady) RunFiber(lanes[lane]);
    }
  } while (ReleaseExchange(warp));
}

// True if all threads that have not ended wait at the barrier, which then opens.
bool ReleaseBarrier() {
  bool any = false;
  for (const Thread& thread : block.threads) {
    if (thread.state == ThreadState::kWarpExchange) return false;
    any = any || thread.state == ThreadState::kBlockBarrier;
  }
  if (!any) return false;
  for (Thread& thread : block.threads) {
    if (thread.state == ThreadState::kBlockBarrier) thread.state = ThreadState::kReady;
  }
  return true;
}

void RunBlock(size_t shared_bytes) {
  // A block finds anything in shared memory: NaN, mostly.
  block.shared.assign((shared_bytes + 127) / 8 + 16, ~uint64_t{0});
  for (size_t i = 0; i < block.threads.size(); ++i) {
    Thread& thread = block.threads[i];
    thread.state = ThreadState::kReady;
    thread.parity = 0;
    thread.copies.assign(1, {});
    StartFiber(thread);
  }
  do {
    for (const int warp : block.order) RunWarp(static_cast<size_t>(warp));
  } while (ReleaseBarrier());
  for (Thread& thread : block.threads) {
    if (thread.state == ThreadState::kDone) continue;
    threadIdx = thread.index;
    Fail("waits for ever: its warp's other lanes have ended, or wait for something else");
  }
}

// All lanes' operands, once all have brought theirs.
const std::array<std::array<uint32_t, kWords>, kLanes>& Meet(Exchange exchange,
                                                             const uint32_t* words, size_t count) {
  Thread& self = block.threads[static_cast<size_t>(current)];
  auto& operands =
      block.warps[static_cast<size_t>(current / kLanes)].operands[static_cast<size_t>(self.parity)];
  self.parity ^= 1;
  std::copy_n(words, count, operands[static_cast<size_t>(current % kLanes)].begin());
  self.exchange = exchange;
  Yield(ThreadState::kWarpExchange);
  return operands;
}

float Bf16Half(uint32_t pair, int half) {
  return __uint_as_float((half == 0 ? pair << 16 : pair) & 0xffff0000U);
}

}  // namespace

int Lane() { return current % kLanes; }

void BlockBarrier() { Yield(ThreadState::kBlockBarrier); }

uint32_t Shuffle(uint32_t word, int source_lane) {
  return Meet(Exchange::kShuffle, &word, 1)[static_cast<size_t>(source_lane)][0];
}

uint32_t Ballot(bool predicate) {
  const uint32_t word = predicate ? 1 : 0;
  const auto& operands = Meet(Exchange::kBallot, &word, 1);
  uint32_t votes = 0;
  for (int lane = 0; lane < kLanes; ++lane) votes |= operands[static_cast<size_t>(lane)][0] << lane;
  return votes;
}

void WarpBarrier() { Meet(Exchange::kBarrier, nullptr, 0); }

void* DynamicShared() {
  const auto address = reinterpret_cast<uintptr_t>(block.shared.data());
  return reinterpret_cast<void*>((address + 127) / 128 * 128);
}

// Lane l holds rows l / 4 and l / 4 + 8 of a and d, and column l / 4 of b (PTX ISA, mma.m16n8k16).
void MmaBf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const std::array<uint32_t, 6> own = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const auto& operands = Meet(Exchange::kMma, own.data(), own.size());
  const int lane = Lane();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + (i >= 2 ? 8 : 0);
    const int column = lane % 4 * 2 + i % 2;
    float sum = d[i];
    for (int k = 0; k < 16; ++k) {
      const int a_lane = row % 8 * 4 + k % 8 / 2;
      const int a_register = row / 8 + k / 8 * 2;
      const int b_lane = column * 4 + k % 8 / 2;
      const auto& from_a = operands[static_cast<size_t>(a_lane)];
      const auto& from_b = operands[static_cast<size_t>(b_lane)];
      sum += Bf16Half(from_a[static_cast<size_t>(a_register)], k % 2) *
             Bf16Half(from_b[static_cast<size_t>(4 + k / 8)], k % 2);
    }
    d[i] = sum;
  }
}

void LoadMatrixX4(uint32_t (&registers)[4], const void* row, bool transposed) {
  std::array<uint32_t, 2> own;
  std::memcpy(own.data(), &row, sizeof row);
  const auto& operands = Meet(Exchange::kLoadMatrix, own.data(), own.size());
  const auto element = [&](int matrix, int r, int c) {
    const char* address = nullptr;
    std::memcpy(&address, operands[static_cast<size_t>(8 * matrix + r)].data(), sizeof address);
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) Fail("ldmatrix wants rows at 16 bytes");
    uint16_t value = 0;
    std::memcpy(&value, address + 2 * c, sizeof value);
    return uint32_t{value};
  };
  const int lane = Lane();
  for (int i = 0; i < 4; ++i) {
    const int at = lane / 4;
    const int first = lane % 4 * 2;
    registers[i] = transposed ? element(i, first, at) | element(i, first + 1, at) << 16
                              : element(i, at, first) | element(i, at, first + 1) << 16;
  }
}

void CopyAsync(void* shared, const void* global, size_t bytes, size_t valid) {
  if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global)) % bytes != 0) {
    Fail("cp.async wants addresses at multiples of its size");
  }
  std::memset(shared, 0xff, bytes);
  block.threads[static_cast<size_t>(current)].copies.back().push_back(
      {shared, global, bytes, valid});
}

void CommitCopies() { block.threads[static_cast<size_t>(current)].copies.emplace_back(); }

void WaitCopies(int pending_groups) {
  auto& copies = block.threads[static_cast<size_t>(current)].copies;
  while (std::ssize(copies) - 1 > pending_groups) {
    for (const PendingCopy& copy : copies.front()) {
      std::memcpy(copy.shared, copy.global, copy.valid);
      std::memset(static_cast<char*>(copy.shared) + copy.valid, 0, copy.bytes - copy.valid);
    }
    copies.erase(copies.begin());
  }
}

void RunGrid(dim3 grid, dim3 block_shape, size_t shared_bytes, const std::function<void()>& body) {
  const size_t threads = size_t{block_shape.x} * block_shape.y * block_shape.z;
  gridDim = grid;
  blockDim = block_shape;
  block.body = &body;
  block.threads = std::vector<Thread>(threads);
  block.warps.resize(threads / kLanes);
  block.lane_order = Permutation(kLanes, 0);
  for (unsigned z = 0, i = 0; z < block_shape.z; ++z) {
    for (unsigned y = 0; y < block_shape.y; ++y) {
      for (unsigned x = 0; x < block_shape.x; ++x) block.threads[i++].index = {x, y, z};
    }
  }
  uint64_t number = 0;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        block.order = Permutation(static_cast<int>(threads / kLanes), ++number);
        RunBlock(shared_bytes);
      }
    }
  }
#ifdef __SANITIZE_THREAD__
  for (const Thread& thread : block.threads) __tsan_destroy_fiber(thread.tsan);
#endif
}

}  // namespace causeway::emulation
