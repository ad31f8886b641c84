#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "worker/sync/local_group.h"

namespace causeway::worker {

// A LocalGroup whose ranks are threads of this process, over memory that the CPU reaches: for
// tests, and the reference for other groups.
//
//   const auto threads = ThreadGroup::Create(ranks);
//   (thread r)   threads[r]->AllReduceSum(...)
//
// Sums are in order of rank, of kBf16 in fp32 and rounded once. An operation blocks its thread
// until all ranks have called it; it refuses, on every rank, calls that do not fit each other,
// which a group of GPUs would hang on. A ThreadGroup that is destroyed while others still wait for
// it aborts them.
class ThreadGroup final : public LocalGroup {
 public:
  // Called with an operation's stream before its memory is touched: waits until what was put on the
  // stream before is done.
  using WaitForStream = std::function<absl::Status(GroupStream)>;

  static std::vector<std::unique_ptr<LocalGroup>> Create(int ranks, WaitForStream wait = nullptr);
  ~ThreadGroup() override;

  int rank() const override { return rank_; }
  int size() const override;
  absl::Status AllReduceSum(void* data, int64_t count, GroupType type, GroupStream stream) override;
  absl::Status ReduceScatterSum(void* data, std::span<const int64_t> bounds, GroupType type,
                                GroupStream stream) override;
  absl::Status AllGather(void* data, std::span<const int64_t> bounds, GroupType type,
                         GroupStream stream) override;
  absl::Status Broadcast(void* data, int64_t count, GroupType type, int root,
                         GroupStream stream) override;
  absl::Status BeginBatch() override { return status(); }
  absl::Status EndBatch() override { return status(); }
  absl::Status Barrier() override;
  void Abort(const absl::Status& cause) override;
  absl::Status status() const override;

 private:
  class Meeting;
  struct Call;

  ThreadGroup(std::shared_ptr<Meeting> meeting, int rank, WaitForStream wait);
  absl::Status Do(const Call& call, GroupStream stream);

  const std::shared_ptr<Meeting> meeting_;
  const int rank_;
  const WaitForStream wait_;
};

// An array for each rank: value i of rank r is 100 r + i.
inline std::vector<std::vector<float>> Arrays(int ranks, size_t values) {
  std::vector<std::vector<float>> arrays;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<float>& array = arrays.emplace_back();
    for (size_t i = 0; i < values; ++i) {
      array.push_back(static_cast<float>(100 * rank) + static_cast<float>(i));
    }
  }
  return arrays;
}

}  // namespace causeway::worker
