// The devices of one site, working as one: sums, cuts and copies of arrays over all of them.
//
// Each rank has a LocalGroup of its own and calls the same operations in the same order with arrays
// of the same sizes; a rank is used by one thread at a time. NcclGroup joins GPUs, those of other
// hosts included. Tests of emulated GPUs have a plain C++ stand-in for NCCL
// (tests/emulation/emulated_nccl.cc).
//
// Operations are put on `stream` (a cudaStream_t; the memory's own if null) and done when it has
// come that far. What they give is the same on every rank, bit for bit, and from run to run on the
// same machines.
//
// **Nothing hangs.** When a rank fails it calls Abort with the cause; that a process or a host has
// gone is noticed by the others. From then on every operation and every wait returns the first
// cause on every rank, ABORTED, with the rank that it came from. Because operations on a stream
// return before they are done, a rank asks status() after it has waited for the stream.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace causeway::worker {

enum class GroupType { kFloat, kBf16, kDouble };
int64_t GroupTypeBytes(GroupType type);

using GroupStream = void*;

// INVALID_ARGUMENT unless these are the bounds of as many pieces.
absl::Status CheckBounds(std::span<const int64_t> bounds, int pieces);

class LocalGroup {
 public:
  virtual ~LocalGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // The pieces of an array: rank r's is data[bounds[r]] .. data[bounds[r + 1]], bounds ascend and
  // are size() + 1; pieces may be empty. Equal pieces are the fastest.
  //
  // Each rank's own piece of its `data` becomes the sum of that piece over all ranks, of kBf16 with
  // fp32 sums; the other pieces are unspecified.
  virtual absl::Status ReduceScatterSum(void* data, std::span<const int64_t> bounds, GroupType type,
                                        GroupStream stream) = 0;
  // Each rank's own piece is copied into every rank's `data`.
  virtual absl::Status AllGather(void* data, std::span<const int64_t> bounds, GroupType type,
                                 GroupStream stream) = 0;
  // All `data` becomes that of rank `root`.
  virtual absl::Status Broadcast(void* data, int64_t count, GroupType type, int root,
                                 GroupStream stream) = 0;

  // Begins a batch, whose calls may be started together with fewer launches: nothing need be done
  // before its end. Calls pair up.
  virtual absl::Status BeginBatch() = 0;
  virtual absl::Status EndBatch() = 0;

  // The first cause anywhere wins. Any thread; never blocks for long.
  virtual void Abort(const absl::Status& cause) = 0;
  // OK until there is a cause. Any thread.
  virtual absl::Status status() const = 0;
};

// Why a group of ranks has ended: one cause for all of them, the first that anyone has.

// Thread-safe.
class SharedCause {
 public:
  // ABORTED with the rank and its message; keeps the first. `cause` is not OK.
  void Set(int rank, const absl::Status& cause);
  // The same of a cause that says where it comes from.
  void Set(const absl::Status& cause);
  absl::Status Get() const;

  // Calls `listener` once, with the cause, on the thread that sets it, or at once if there is one.
  // Until Remove, which waits for a call that is under way; not from inside of one.
  using Listener = std::function<void(const absl::Status&)>;
  int Listen(Listener listener);
  void Remove(int id);

 private:
  mutable absl::Mutex mutex_;
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex listeners_mutex_;  // Held while they are called.
  std::map<int, Listener> listeners_ ABSL_GUARDED_BY(listeners_mutex_);
  int next_id_ ABSL_GUARDED_BY(listeners_mutex_) = 0;
};

}  // namespace causeway::worker
