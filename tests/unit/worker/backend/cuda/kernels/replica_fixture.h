// Values of workers that are on devices, or divided over processes, for tests that compare them
// with such as are in host memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/worker/backend/site_thread.h"
#include "tests/unit/worker/sync/engine_site.h"
#include "worker/backend/cuda/kernels/device.h"
#include "worker/backend/cuda/kernels/device_part.h"
#include "worker/sync/host_part.h"
#include "worker/sync/process_link.h"
#include "worker/sync/remote_part.h"
#include "worker/sync/replica.h"
#include "worker/sync/site_ranks.h"
#include "worker/sync/sync_engine.h"

namespace causeway::worker::cuda {

struct Layout {
  int ranks = 1;
  bool published_on_device = true;
  bool last_is_remote = false;  // The last rank is another process's, as far as this one knows.
  bool on_host = false;         // Every rank is a process of a trainer's own site.
};

// Their values, their links and what carries these. Shares end anywhere, as a trainer's shards do.
class RankedValues final : public Values {
 public:
  RankedValues(const FragmentPlan& plan, const v1::SyncConfig& sync, int ranks)
      : plan_(plan), shards_(plan, ranks, SharesOf(plan, ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      links_.push_back(std::make_unique<SiteLinks>(rank, ranks));
      values_.push_back(HostShare::Create(plan, shards_, rank, sync, {}).value());
    }
    for (int rank = 0; rank < ranks; ++rank) {
      carriers_.emplace_back([this, rank] {
        while (auto message = links_[static_cast<size_t>(rank)]->NextOutgoing()) {
          EXPECT_TRUE(links_[static_cast<size_t>(message->rank)]
                          ->TakeIncoming({rank, std::move(message->bytes)})
                          .ok());
        }
      });
    }
    const auto make_part = [this](size_t rank) {
      return [this, rank] { return values_[rank]->MakePart(); };
    };
    leader_ = std::make_unique<LeadingRank>(*links_[0], plan, shards_, sync, make_part(0));
    for (size_t rank = 1; rank < links_.size(); ++rank) {
      followers_.push_back(
          FollowingRank::Open(*links_[rank], plan, shards_, sync, make_part(rank)).value());
    }
  }
  ~RankedValues() override {
    leader_.reset();
    followers_.clear();
    for (const auto& links : links_) links->Close();
    for (std::thread& carrier : carriers_) carrier.join();
  }

  std::unique_ptr<Replica> MakeReplica() override { return leader_->MakeReplica().value(); }
  void Train(int64_t step) override {
    ForEach([&](float& value, size_t i) { value += MoveOf(step, static_cast<int64_t>(i)); });
  }
  std::vector<float> Local() override {
    std::vector<float> local(static_cast<size_t>(plan_.arena_size()));
    ForEach([&](float& value, size_t i) { local[i] = value; });
    return local;
  }
  void SetLocal(const std::vector<float>& local) override {
    ForEach([&](float& value, size_t i) { value = local[i]; });
  }

 private:
  static std::vector<OwnedRange> SharesOf(const FragmentPlan& plan, int ranks) {
    std::vector<OwnedRange> owned;
    for (const PlacedTensor& tensor : plan.tensors()) {
      const int64_t size = tensor.info.size();
      for (int rank = 0; rank < ranks; ++rank) {
        owned.push_back(
            {tensor.offset + size * rank / ranks, tensor.offset + size * (rank + 1) / ranks, rank});
      }
    }
    return owned;
  }
  // Every value, where it is.
  template <typename Body>
  void ForEach(const Body& body) {
    EXPECT_EQ(leader_->Settle(), absl::OkStatus());
    for (int rank = 0; rank < shards_.ranks(); ++rank) {
      const std::span<float> arena = values_[static_cast<size_t>(rank)]->arena();
      for (const ShardPiece& piece : shards_.pieces(rank)) {
        for (auto i = static_cast<size_t>(piece.begin); i < static_cast<size_t>(piece.end); ++i) {
          body(arena[i], i);
        }
      }
    }
  }

  const FragmentPlan& plan_;
  const ShardPlan shards_;
  std::vector<std::unique_ptr<SiteLinks>> links_;
  std::vector<std::unique_ptr<HostShare>> values_;
  std::vector<std::thread> carriers_;
  std::unique_ptr<LeadingRank> leader_;
  std::vector<std::unique_ptr<FollowingRank>> followers_;
};

// That other process: its part, and the thread that answers for it.
class OtherProcess {
 public:
  OtherProcess(const FragmentPlan& plan, const ShardPlan& shard_plan, const v1::SyncConfig& sync,
               const DeviceShard& shard, const DevicePartOptions& options)
      : server_(thread_.far(), PieceBytes(plan, shard_plan, sync, shard.rank, 1),
                OfOnePart([=, &plan, &shard_plan] {
                  return DevicePart::Create(plan, shard_plan, sync, shard, options);
                })) {
    EXPECT_TRUE(server_.Make().ok());
    thread_.Serve([this](SiteCall& call) { return server_.HandleAtOnce(call); },
                  [this](SiteCall& call) { return server_.Handle(call); });
  }
  ~OtherProcess() { thread_.Stop(); }
  SiteLink& link() { return thread_.link(); }
  // Comes back when all calls before have been dealt with, as a step's call would.
  void Settle() {
    EXPECT_THAT(link().CallAndAwait(kFirstOtherMethod).status().message(),
                testing::HasSubstr("no method"));
  }

 private:
  SiteThread thread_{1};
  PartServer server_;
};

class DeviceValues final : public Values {
 public:
  DeviceValues(const FragmentPlan& plan, const v1::SyncConfig& sync, const Layout& layout)
      : plan_(plan),
        sync_(sync),
        layout_(layout),
        shard_plan_(plan, layout.ranks, /*least_bucket=*/int64_t{1} << 13) {
    int devices = 0;
    EXPECT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
    for (int i = 0; i < layout.ranks; ++i) {
      EXPECT_TRUE(UseDevice(i % devices).ok());
      auto rank = std::make_unique<Rank>(static_cast<size_t>(shard_plan_.shard_size(i)),
                                         static_cast<size_t>(plan.arena_size()));
      rank->device = i % devices;
      ranks_.push_back(std::move(rank));
    }
    EXPECT_TRUE(UseDevice(0).ok());
  }

  std::unique_ptr<Replica> MakeReplica() override {
    std::vector<DeviceShard> shards;
    for (int i = 0; i < layout_.ranks; ++i) {
      Rank& rank = *ranks_[static_cast<size_t>(i)];
      shards.push_back({.device = rank.device,
                        .rank = i,
                        .master = rank.master,
                        .gradients = rank.gradients,
                        .weights = rank.weights,
                        .training = rank.training.get(),
                        .snapshots_done = rank.snapshots_done.get()});
    }
    DevicePartOptions options;
    options.published_on_device = layout_.published_on_device;
    other_.reset();
    std::unique_ptr<ReplicaPart> remote;
    if (layout_.last_is_remote) {
      other_ = std::make_unique<OtherProcess>(plan_, shard_plan_, sync_, shards.back(), options);
      shards.pop_back();
      remote = std::make_unique<RemotePart>(
          other_->link(), PieceBytes(plan_, shard_plan_, sync_, layout_.ranks - 1, 1), sync_);
    }
    std::vector<std::unique_ptr<ReplicaPart>> parts;
    for (const DeviceShard& shard : shards) {
      if (&shard == &shards.back()) {
        options.weights_changed = [this](int fragment) { changed_.push_back(fragment); };
      }
      parts.push_back(DevicePart::Create(plan_, shard_plan_, sync_, shard, options).value());
    }
    if (remote != nullptr) parts.push_back(std::move(remote));
    return std::make_unique<Replica>(plan_, sync_, std::move(parts));
  }

  // Issues an update that waits for snapshots, and for nothing on the host.
  void Train(int64_t step) override {
    if (other_ != nullptr) other_->Settle();
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = *ranks_[r];
      EXPECT_TRUE(UseDevice(rank.device).ok());
      rank.Fetch();
      for (const ShardPiece& piece : shard_plan_.pieces(static_cast<int>(r))) {
        for (int64_t i = 0; i < piece.size(); ++i) {
          rank.values[static_cast<size_t>(piece.offset + i)] += MoveOf(step, piece.begin + i);
          rank.gradient_values[static_cast<size_t>(piece.begin + i)] =
              GradientOf(step, piece.begin + i);
        }
      }
      EXPECT_TRUE(CheckCuda(cudaStreamWaitEvent(rank.training.get(), rank.snapshots_done.get(), 0),
                            "waiting for snapshots")
                      .ok());
      rank.Issue();
    }
    EXPECT_TRUE(UseDevice(0).ok());
  }

  std::vector<float> Local() override {
    if (other_ != nullptr) other_->Settle();
    std::vector<float> local(static_cast<size_t>(plan_.arena_size()));
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = *ranks_[r];
      EXPECT_TRUE(UseDevice(rank.device).ok());
      rank.Fetch();
      for (const ShardPiece& piece : shard_plan_.pieces(static_cast<int>(r))) {
        std::copy_n(rank.values.begin() + piece.offset, piece.size(), local.begin() + piece.begin);
      }
    }
    EXPECT_TRUE(UseDevice(0).ok());
    return local;
  }

  void SetLocal(const std::vector<float>& local) override {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = *ranks_[r];
      EXPECT_TRUE(UseDevice(rank.device).ok());
      for (const ShardPiece& piece : shard_plan_.pieces(static_cast<int>(r))) {
        std::copy_n(local.begin() + piece.begin, piece.size(), rank.values.begin() + piece.offset);
      }
      rank.Issue();
    }
    EXPECT_TRUE(UseDevice(0).ok());
  }

  // After a merge: every rank's own pieces of the weights for computing.
  std::vector<float> Weights() {
    std::vector<float> weights(static_cast<size_t>(plan_.arena_size()));
    for (size_t r = 0; r < ranks_.size(); ++r) {
      EXPECT_TRUE(UseDevice(ranks_[r]->device).ok());
      const std::vector<__nv_bfloat16> all = ranks_[r]->Weights();
      for (const ShardPiece& piece : shard_plan_.pieces(static_cast<int>(r))) {
        for (int64_t i = piece.begin; i < piece.end; ++i) {
          weights[static_cast<size_t>(i)] = __bfloat162float(all[static_cast<size_t>(i)]);
        }
      }
    }
    EXPECT_TRUE(UseDevice(0).ok());
    return weights;
  }
  const std::vector<int>& changed() const { return changed_; }

 private:
  struct Rank {
    Rank(size_t shard, size_t arena)
        : master(Take<float>(shard)),
          gradients(Take<float>(arena)),
          weights(Take<__nv_bfloat16>(arena)),
          values(shard),
          gradient_values(arena) {
      training = Stream::Create().value();
      snapshots_done = Event::Create().value();
    }
    void Fetch() {
      Copy(values.data(), master, values.size(), cudaMemcpyDeviceToHost);
      EXPECT_TRUE(training.Wait("training").ok());
    }
    void Issue() {
      Copy(master, values.data(), values.size(), cudaMemcpyHostToDevice);
      Copy(gradients, gradient_values.data(), gradient_values.size(), cudaMemcpyHostToDevice);
    }
    void Copy(float* to, const float* from, size_t size, cudaMemcpyKind kind) {
      EXPECT_TRUE(CheckCuda(cudaMemcpyAsync(to, from, size * sizeof(float), kind, training.get()),
                            "copying")
                      .ok());
    }

    std::vector<__nv_bfloat16> Weights() const {
      std::vector<__nv_bfloat16> all(gradient_values.size());
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      EXPECT_EQ(cudaMemcpy(all.data(), weights, all.size() * sizeof(__nv_bfloat16),
                           cudaMemcpyDeviceToHost),
                cudaSuccess);
      return all;
    }
    template <typename T>
    T* Take(size_t size) {
      return memory.Allocate<T>("", static_cast<int64_t>(size), "").value();
    }

    int device = 0;
    DeviceMemory memory;
    float* master;
    float* gradients;
    __nv_bfloat16* weights;
    Stream training;
    Event snapshots_done;
    std::vector<float> values;
    std::vector<float> gradient_values;
  };

  const FragmentPlan& plan_;
  const v1::SyncConfig sync_;
  const Layout layout_;
  const ShardPlan shard_plan_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<OtherProcess> other_;
  std::vector<int> changed_;
};

}  // namespace causeway::worker::cuda
