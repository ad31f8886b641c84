// The backend of a site with GPUs, as process 0 sees it: its own ShardedBackend and those of the
// other processes, if there are any, train together; what these have is asked for over their links.
//
// Tokens go to the others with each step, answers of the coordinator and codes at synchronization
// (worker/sync/remote_part.h), weights and moments when a checkpoint is written or read. Everything
// that a step exchanges goes from GPU to GPU, past this.
//
// Evaluation uses the GPUs of process 0.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/base/byte_buffer.h"
#include "common/params/fragment_plan.h"
#include "worker/sync/backend.h"
#include "worker/sync/process_link.h"
#include "worker/sync/remote_part.h"

namespace causeway::worker {

// Calls of process 0 to the others, over their SiteLinks, beside those of a PartServer; and the one
// thing that they ask of it. Arrays are as they lie in memory: all processes are of one build.
enum SiteMethod : int {
  // --- Coming together (worker/commands/site.h) ---
  kSiteHello = kFirstOtherMethod,  // The same in all builds. Who are you? Answer: v1::SiteMember.
  kSiteBuild,                      // v1::SiteBuild: make the backend. Answer: the matrix products.
  kSiteEnd,                        // Training is over. Nobody waits for an answer.
  kSiteStop,                       // To process 0: this process was told to stop.
  // --- Training ---
  kSiteStep,            // argument: the step; bytes: StepTokens. Answer: its loss and tokens.
  kSiteSetParameters,   // bytes: the own pieces of master weights.
  kSiteCopyParameters,  // Answer: the same.
  kSiteCopyMoments,     // argument: 0 for the first, 1 for the second. Answer: the own pieces.
  kSiteRestoreFirst,    // bytes: the own pieces of the first moments.
  kSiteRestoreMoments,  // argument: updates; bytes: those of the second.
  kSiteRefreshWeights,  // Process 0 has used its GPUs' weights for an evaluation.
};

// INVALID_ARGUMENT, with what to change, unless all ranks, which are GPUs, have equally many
// micro-batches.
absl::Status CheckShares(const v1::TrainConfig& train, int ranks);

// The micro-batches that a process has of a step, which travel as they lie here. They are dealt out
// in turn: of all ranks, rank r has the micro-batches r, r + ranks, and so on.
class StepTokens {
 public:
  // `config` is complete, and CheckShares holds.
  StepTokens(const v1::RunConfig& config, int ranks, const RankRange& own);

  int64_t micro_batches() const { return micro_batches_; }  // Of the step.
  // By the numbers that they have in the step.
  bool Has(int64_t index) const;
  MicroBatch At(int64_t index);  // One that it has.
  // Refers to this. INVALID_ARGUMENT for a micro-batch that it has not.
  MicroBatchReader Reader();

  const ByteBuffer& bytes() const { return bytes_; }
  // INVALID_ARGUMENT for another length than bytes() has.
  absl::Status Take(ByteBuffer bytes);

 private:
  const int64_t micro_batches_;
  const int ranks_;
  const RankRange own_;
  const size_t tokens_;   // Tokens per micro-batch.
  const bool documents_;  // Where they start, beside inputs and targets.
  ByteBuffer bytes_;      // Of int32_t.
};

class SiteBackend : public TrainingBackend {
 public:
  // The ranks of another process.
  struct Other {
    SiteLink* link = nullptr;
    RankRange range;
  };
  // The arguments outlive the backend. `own` has rank 0; all processes have made their backends for
  // the same ShardPlan.
  SiteBackend(const v1::RunConfig& config, const FragmentPlan& plan,
              std::unique_ptr<ShardedBackend> own, const std::vector<Other>& others);

  absl::StatusOr<StepReport> Step(int64_t step, const MicroBatchReader& read) override;
  absl::Status SetParameters(std::span<const float> parameters) override;
  absl::Status CopyParameters(std::span<float> parameters) override;
  absl::StatusOr<OptimizerState> SaveOptimizer() override;
  absl::Status RestoreOptimizer(int64_t updates, std::span<const float> first_moments,
                                std::span<const float> second_moments) override;
  absl::StatusOr<std::unique_ptr<Replica>> MakeReplica() override;
  std::string Describe() const override;

  int64_t sequence_length() const override { return own_->evaluation().sequence_length(); }
  int micro_batch_sequences() const override { return own_->evaluation().micro_batch_sequences(); }
  absl::Status UseParameters(std::span<const float> parameters) override;
  absl::StatusOr<double> Loss(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                              std::span<const int32_t> document_starts) override {
    return own_->evaluation().Loss(inputs, targets, document_starts);
  }

 private:
  // Bytes that each of the others gets of an arena.
  BytesFor PiecesOf(std::span<const float> arena) const;
  // And gives.
  TakeFrom PiecesInto(std::span<float> arena) const;

  const v1::RunConfig& config_;
  const FragmentPlan& plan_;
  const std::unique_ptr<ShardedBackend> own_;
  std::vector<RemoteRanks> others_;
  std::vector<StepTokens> tokens_;  // Of all processes, this one's first.
};

// The work of a site's processes beside process 0: answers the calls of SiteBackend with the
// backend that has this process's GPUs.
class ShardServer {
 public:
  // The arguments outlive the server.
  ShardServer(SiteLink& link, const v1::RunConfig& config, const FragmentPlan& plan,
              std::unique_ptr<ShardedBackend> backend);

  // For SiteLink::Start, on its thread: what need not wait for a step's end.
  bool HandleAtOnce(SiteCall& call) { return parts_.HandleAtOnce(call); }
  // On the training thread, in the order of NextCall. Errors: the link's; those of the backend are
  // answered. INVALID_ARGUMENT is answered to unknown methods.
  absl::Status Handle(SiteCall& call);
  // Destroys the backend; nothing is handled any more.
  void Close();

 private:
  absl::StatusOr<ByteBuffer> Do(SiteCall& call);
  std::vector<float> Arena() const {
    return std::vector<float>(static_cast<size_t>(plan_.arena_size()));
  }

  SiteLink& link_;
  const FragmentPlan& plan_;
  std::unique_ptr<ShardedBackend> backend_;
  const PieceBytes pieces_;
  StepTokens tokens_;
  std::vector<float> first_moments_;  // Until the second ones come.
  PartServer parts_;                  // Last: they use the backend.
};

}  // namespace causeway::worker
