#include "worker/site/device_values.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/backend/cuda/kernels/codec_kernels.h"
#include "worker/backend/cuda/kernels/device.h"
#include "worker/backend/cuda/kernels/device_part.h"
#include "worker/sync/replica.h"
#include "worker/sync/shard_plan.h"

namespace causeway::worker {
namespace cuda {
namespace {

// Fragments that a step touches: as many as are sent and merged after it.
int TouchedAtOnce(const FragmentPlan& plan, const v1::SyncConfig& sync) {
  const int steps = std::max(1, sync.steps_between_syncs());
  return std::min(plan.fragments(), 2 * ((plan.fragments() + steps - 1) / steps));
}

int64_t BytesOf(int32_t type) { return type == CAUSEWAY_FLOAT32 ? 4 : 2; }

// A run of values that the rank owns.
struct Run {
  int64_t own = 0;    // Its first value among those that the rank owns of the fragment.
  int64_t place = 0;  // The same among the values that were asked about.
  int64_t size = 0;
};

int64_t SizeOf(const std::vector<Run>& runs) {
  int64_t size = 0;
  for (const Run& run : runs) size += run.size;
  return size;
}

class CudaDeviceValues final : public DeviceValues {
 public:
  CudaDeviceValues(const FragmentPlan& plan, const ShardPlan& shards, int rank, int device,
                   const v1::SyncConfig& sync, const TensorMatch& match,
                   const DeviceOptions& options)
      : plan_(plan),
        shards_(shards),
        rank_(rank),
        sync_(sync),
        match_(match),
        device_(device),
        published_on_device_(!options.published_on_host),
        keeps_all_(std::ranges::any_of(options.values,
                                       [](const auto& v) { return v.type != CAUSEWAY_FLOAT32; })),
        jobs_(static_cast<size_t>(plan.fragments())),
        locals_(static_cast<size_t>(plan.fragments())) {}
  ~CudaDeviceValues() override { (void)UseDevice(device_); }

  absl::Status Allocate(std::span<const causeway_device_values> values) {
    RETURN_IF_ERROR(UseDevice(device_));
    ASSIGN_OR_RETURN(setting_, Stream::Create());
    ASSIGN_OR_RETURN(issued_, Event::Create());
    ASSIGN_OR_RETURN(gaps_,
                     memory_.Allocate<float>("values between tensors", match_.gap_values, ""));
    RETURN_IF_ERROR(ClearAsync(gaps_, match_.gap_values, setting_.get(), "clearing"));
    for (const causeway_device_values& each : values) types_.emplace(each.tensor, each.type);
    for (int i = 0; i < plan_.fragments(); ++i) {
      most_values_ = std::max(most_values_, shards_.shard_size(rank_, i));
      jobs_[static_cast<size_t>(i)].values = shards_.shard_size(rank_, i);
    }
    // Each of several ranks learns later where the rest is that it owns.
    const absl::Status moved = Move(values);
    if (shards_.ranks() == 1 || !absl::IsNotFound(moved)) RETURN_IF_ERROR(moved);
    if (keeps_all_) {
      ASSIGN_OR_RETURN(float* const all,
                       memory_.Allocate<float>("exact copies of what has 2 bytes",
                                               shards_.shard_size(rank_), "--values=host"));
      RETURN_IF_ERROR(ClearAsync(all, shards_.shard_size(rank_), setting_.get(), "clearing"));
      for (int i = 0; i < plan_.fragments(); ++i) {
        if (!Pieces(i).empty()) locals_[static_cast<size_t>(i)] = all + Pieces(i).front().offset;
      }
      return setting_.Wait("clearing exact copies");
    }
    for (int i = 0; i < TouchedAtOnce(plan_, sync_); ++i) {
      ASSIGN_OR_RETURN(float* const local, MakeLocal());
      free_.push_back(local);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<ReplicaPart>> MakePart() override {
    training_ = setting_.get();
    if (!keeps_all_) Release({});
    // Steps are issued to a stream that is not known yet; nothing follows it before a Gather.
    const DeviceShard shard = {
        .device = device_, .rank = rank_, .locals = locals_.data(), .training = setting_.get()};
    // The part has this, so that part_ is null once it is gone.
    auto forgets = std::shared_ptr<void>(nullptr, [this](void*) { part_ = nullptr; });
    DevicePartOptions options = {
        .published_on_device = published_on_device_,
        .weights_changed = nullptr,
        .use_local = [this, forgets](const PartCall& call) { return UseLocal(call); }};
    forgets.reset();
    ASSIGN_OR_RETURN(std::unique_ptr<DevicePart> part,
                     DevicePart::Create(plan_, shards_, sync_, shard, std::move(options)));
    part_ = part.get();
    return part;
  }

  absl::Status CheckMove(std::span<const causeway_device_values> values) const override {
    return TablesOf(values).status();
  }

  absl::Status Move(std::span<const causeway_device_values> values) override {
    RETURN_IF_ERROR(UseDevice(device_));
    ASSIGN_OR_RETURN(const Tables tables, TablesOf(values));
    // What was issued before may still read the tables.
    if (part_ != nullptr) RETURN_IF_ERROR(CheckCuda(cudaDeviceSynchronize(), "before new tables"));
    for (size_t i = 0; i < tables.size(); ++i) {
      const auto count = static_cast<int>(tables[i].size());
      if (count > jobs_[i].range_count) {
        ASSIGN_OR_RETURN(jobs_[i].ranges,
                         memory_.Allocate<ValueRange>("tables of tensors", count, ""));
      }
      jobs_[i].range_count = count;
      if (count == 0) continue;
      RETURN_IF_ERROR(CopyAsync(const_cast<ValueRange*>(jobs_[i].ranges), tables[i].data(), count,
                                setting_.get(), "copying a table of tensors"));
    }
    complete_ = true;
    return setting_.Wait("copying tables of tensors");  // They end here.
  }

  absl::Status Gather(std::span<const int32_t> fragments, void* stream) override {
    RETURN_IF_ERROR(CheckComplete());
    RETURN_IF_ERROR(UseDevice(device_));
    const auto training = static_cast<cudaStream_t>(stream);
    part_->UseStream(training);
    training_ = training;
    // Buffers that are used again may still be read, as may what is published.
    RETURN_IF_ERROR(part_->HoldUp(training));
    if (!keeps_all_) Release(fragments);
    gathered_.assign(fragments.begin(), fragments.end());
    for (const int32_t fragment : fragments) {
      if (Pieces(fragment).empty()) continue;
      ASSIGN_OR_RETURN(float* const local, Local(fragment));
      LaunchGather(jobs_[static_cast<size_t>(fragment)], local, part_->PublishedValues(fragment),
                   training);
    }
    RETURN_IF_ERROR(issued_.Record(training));
    return CheckLaunches("taking values from the trainer's tensors");
  }

  bool HasGathered(int fragment) const override {
    return std::ranges::find(gathered_, fragment) != gathered_.end();
  }

  absl::Status Scatter(std::span<const int32_t> fragments, bool published, void* stream) override {
    RETURN_IF_ERROR(CheckComplete());
    RETURN_IF_ERROR(UseDevice(device_));
    const auto training = static_cast<cudaStream_t>(stream);
    // The stream that was gathered in is held up by what changes values there, and not by hashes.
    if (training != training_ || published) RETURN_IF_ERROR(part_->HoldUp(training));
    for (const int32_t fragment : fragments) {
      if (Pieces(fragment).empty()) continue;
      const float* const local = locals_[static_cast<size_t>(fragment)];
      LaunchScatter(jobs_[static_cast<size_t>(fragment)],
                    published || local == nullptr ? part_->PublishedValues(fragment) : local,
                    /*own=*/!published, training);
    }
    RETURN_IF_ERROR(issued_.Record(training));
    return CheckLaunches("writing values to the trainer's tensors");
  }

 private:
  // Local values of a fragment, from its value `first` on, to and from the host: those that the
  // rank owns. Both wait.
  absl::Status CopyLocal(int fragment, int64_t first, std::span<float> values) {
    RETURN_IF_ERROR(UseDevice(device_));
    if (Pieces(fragment).empty()) return absl::OkStatus();
    constexpr char kWhat[] = "copying local values";
    RETURN_IF_ERROR(HoldUp());
    const float* const gathered = locals_[static_cast<size_t>(fragment)];
    const float* const local = gathered != nullptr ? gathered : part_->PublishedValues(fragment);
    for (const Run& run : Owned(fragment, first, std::ssize(values))) {
      RETURN_IF_ERROR(
          CopyAsync(values.data() + run.place, local + run.own, run.size, setting_.get(), kWhat));
    }
    if (gathered != nullptr) return setting_.Wait(kWhat);
    for (const Run& gap : OwnedGaps(fragment, first, std::ssize(values))) {
      RETURN_IF_ERROR(CopyAsync<float>(values.data() + gap.place, gaps_ + gap.own, gap.size,
                                       setting_.get(), kWhat));
    }
    return setting_.Wait(kWhat);
  }

  absl::Status SetLocal(int fragment, int64_t first, std::span<const float> values) {
    RETURN_IF_ERROR(UseDevice(device_));
    if (Pieces(fragment).empty()) return absl::OkStatus();
    constexpr char kWhat[] = "restoring local values";
    const std::vector<Run> owned = Owned(fragment, first, std::ssize(values));
    const std::vector<Run> gaps = OwnedGaps(fragment, first, std::ssize(values));
    float* local = locals_[static_cast<size_t>(fragment)];
    // Gaps between tensors have a place of their own.
    if (SizeOf(owned) > SizeOf(gaps)) {
      ASSIGN_OR_RETURN(local, Local(fragment));
    }
    RETURN_IF_ERROR(HoldUp());
    for (const Run& run : owned) {
      if (local == nullptr) break;
      RETURN_IF_ERROR(
          CopyAsync(local + run.own, values.data() + run.place, run.size, setting_.get(), kWhat));
    }
    for (const Run& gap : gaps) {
      RETURN_IF_ERROR(
          CopyAsync(gaps_ + gap.own, values.data() + gap.place, gap.size, setting_.get(), kWhat));
    }
    return setting_.Wait(kWhat);
  }

  // Does the verbs of a ReplicaPart that a DevicePart leaves to whoever has the local values.
  absl::Status UseLocal(const PartCall& call) {
    const std::span<const float> in = FloatsOf(call.in);
    const std::span<float> out = FloatsOf(call.out);
    if (call.method == kPartCopyLocal) return CopyLocal(call.fragment, 0, out);
    if (call.method == kPartSetLocal) return SetLocal(call.fragment, 0, in);
    for (const GapPiece& gap : GapPieces(plan_, shards_, rank_, call.fragment)) {
      const int64_t first = gap.begin - plan_.range(call.fragment).begin;
      const auto place = static_cast<size_t>(gap.place);
      const auto size = static_cast<size_t>(gap.size);
      RETURN_IF_ERROR(call.method == kPartCopyGaps
                          ? CopyLocal(call.fragment, first, out.subspan(place, size))
                          : SetLocal(call.fragment, first, in.subspan(place, size)));
    }
    return absl::OkStatus();
  }

  // Makes copies follow what was issued here and by the part, and nothing else of the trainer's.
  absl::Status HoldUp() {
    RETURN_IF_ERROR(issued_.HoldUp(setting_.get()));
    return part_->HoldUp(setting_.get());
  }

  absl::Status CheckComplete() const {
    if (part_ == nullptr) {
      return absl::FailedPreconditionError(
          "there are no values: the last replica was not made, or is gone");
    }
    if (complete_) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "it is not known yet where all values are that this rank owns: call causeway_site_move");
  }

  std::span<const ShardPiece> Pieces(int fragment) const { return shards_.pieces(rank_, fragment); }

  // Lists what is owned of `count` values of the fragment from its value `first` on.
  std::vector<Run> Owned(int fragment, int64_t first, int64_t count) const {
    const int64_t from = plan_.range(fragment).begin + first;
    std::vector<Run> runs;
    for (const ShardPiece& piece : Pieces(fragment)) {
      const int64_t begin = std::max(piece.begin, from);
      const int64_t end = std::min(piece.end, from + count);
      if (begin >= end) continue;
      runs.push_back({piece.offset - Pieces(fragment).front().offset + begin - piece.begin,
                      begin - from, end - begin});
    }
    return runs;
  }
  // The same of what lies between tensors; Run::own is where it is in gaps_.
  std::vector<Run> OwnedGaps(int fragment, int64_t first, int64_t count) const {
    std::vector<Run> runs;
    int64_t at = 0;
    for (int i = 0; i <= fragment; ++i) {
      for (const ArenaRange& gap : match_.gaps[static_cast<size_t>(i)]) {
        const int64_t in_fragment = gap.begin - plan_.range(fragment).begin;
        const int64_t begin = std::max(in_fragment, first);
        const int64_t end = std::min(in_fragment + gap.end - gap.begin, first + count);
        const int64_t origin = std::exchange(at, at + gap.end - gap.begin) - in_fragment;
        if (begin >= end) continue;
        for (const Run& run : Owned(fragment, begin, end - begin)) {
          const int64_t place = begin + run.place;
          runs.push_back({origin + place, place - first, run.size});
        }
      }
    }
    return runs;
  }

  // Where the fragment's own values are. INVALID_ARGUMENT unless each is in one place.
  absl::StatusOr<std::vector<ValueRange>> RangesOf(
      int fragment, std::span<const causeway_device_values> all) const {
    const FragmentRange& whole = plan_.range(fragment);
    std::vector<ValueRange> ranges;
    for (const Run& gap : OwnedGaps(fragment, 0, whole.size())) {
      for (const Run& run : Owned(fragment, gap.place, gap.size)) {
        ranges.push_back({.data = gaps_ + gap.own,
                          .first = run.own,
                          .count = run.size,
                          .type = ValueType::kOwn});
      }
    }
    int64_t missing = 0;
    for (const causeway_range& range : match_.ranges[static_cast<size_t>(fragment)]) {
      const int64_t place = range.arena_offset - whole.begin;
      missing += SizeOf(Owned(fragment, place, range.count));
      for (const causeway_device_values& values : all) {
        if (values.tensor != range.tensor || values.device != device_) continue;
        const int64_t begin = std::max(values.begin, range.tensor_offset);
        const int64_t end = std::min(values.end, range.tensor_offset + range.count);
        for (const Run& run : Owned(fragment, place + begin - range.tensor_offset, end - begin)) {
          const int64_t at = begin + run.place - values.begin;
          ranges.push_back({.data = static_cast<char*>(values.data) + at * BytesOf(values.type),
                            .first = run.own,
                            .count = run.size,
                            .type = static_cast<ValueType>(values.type)});
          missing -= run.size;
        }
      }
    }
    std::ranges::sort(ranges, {}, &ValueRange::first);
    for (size_t i = 0; i + 1 < ranges.size(); ++i) {
      if (ranges[i].first + ranges[i].count > ranges[i + 1].first) missing = -1;
    }
    if (missing == 0) return ranges;
    if (missing > 0) {
      return absl::NotFoundError(absl::StrCat("values of GPU ", device_, " must be all that rank ",
                                              rank_, " owns; of fragment ", fragment, " ", missing,
                                              " are missing"));
    }
    return absl::InvalidArgumentError(absl::StrCat("values of GPU ", device_,
                                                   " come twice that rank ", rank_,
                                                   " owns of fragment ", fragment));
  }

  // By fragment.
  using Tables = std::vector<std::vector<ValueRange>>;
  absl::StatusOr<Tables> TablesOf(std::span<const causeway_device_values> values) const {
    RETURN_IF_ERROR(CheckValues(values));
    Tables tables;
    for (int i = 0; i < plan_.fragments(); ++i) {
      ASSIGN_OR_RETURN(tables.emplace_back(), RangesOf(i, values));
    }
    return tables;
  }

  absl::Status CheckValues(std::span<const causeway_device_values> all) const {
    for (size_t i = 0; i < all.size(); ++i) {
      const causeway_device_values& values = all[i];
      const auto type = types_.find(values.tensor);
      const bool known = type != types_.end() && type->second == values.type;
      if ((values.data != nullptr || values.begin == values.end) && values.begin >= 0 &&
          values.begin <= values.end && values.type >= CAUSEWAY_FLOAT32 &&
          values.type <= CAUSEWAY_FLOAT16 && known) {
        continue;
      }
      return absl::InvalidArgumentError(
          absl::StrCat("values[", i,
                       "] of the device must have an address, `begin` .. `end` of a tensor, and of "
                       "the types ",
                       CAUSEWAY_FLOAT32, " .. ", CAUSEWAY_FLOAT16,
                       " that which it had at the join; "
                       "they are ",
                       values.begin, " .. ", values.end, " of tensor ", values.tensor,
                       " and of type ", values.type));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<float*> MakeLocal() {
    return memory_.Allocate<float>("values of fragments that are sent and merged", most_values_,
                                   "sync.fragments");
  }

  // A buffer for the fragment, if it has none.
  absl::StatusOr<float*> Local(int fragment) {
    float*& local = locals_[static_cast<size_t>(fragment)];
    if (local != nullptr) return local;
    if (free_.empty()) {
      ASSIGN_OR_RETURN(local, MakeLocal());
    } else {
      local = free_.back();
      free_.pop_back();
    }
    return local;
  }

  // All buffers but those of `keeps`.
  void Release(std::span<const int32_t> keeps) {
    for (size_t i = 0; i < locals_.size(); ++i) {
      if (locals_[i] == nullptr || std::ranges::find(keeps, static_cast<int32_t>(i)) != keeps.end())
        continue;
      free_.push_back(std::exchange(locals_[i], nullptr));
    }
  }

  const FragmentPlan& plan_;
  const ShardPlan& shards_;
  const int rank_;
  const v1::SyncConfig sync_;
  const TensorMatch match_;
  const int device_;
  const bool published_on_device_;
  std::map<int64_t, int32_t> types_;  // By tensor.
  bool complete_ = false;             // It is known where all values are.
  // Tensors of two bytes need exact copies for all time: of all that the rank owns.
  const bool keeps_all_;
  int64_t most_values_ = 0;  // Owned of a fragment, at most.
  DeviceMemory memory_;
  float* gaps_ = nullptr;       // Local values of match_.gaps.
  Stream setting_;              // For copies that are waited for.
  Event issued_;                // After the last Gather or Scatter.
  std::vector<ValueJob> jobs_;  // By fragment.
  std::vector<float*> locals_;  // By fragment; null: of no interest.
  std::vector<float*> free_;    // Each for the largest fragment.
  std::vector<int32_t> gathered_;
  cudaStream_t training_ = nullptr;  // That the part follows.
  DevicePart* part_ = nullptr;       // Of the last replica; null: it is gone.
};

// Makes the device the calling thread's.
absl::Status CheckDevice(int device) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || device < 0 || device >= count) {
    (void)cudaGetLastError();
    return absl::FailedPreconditionError(
        absl::StrCat("GPU ", device, " cannot be used: ",
                     error == cudaSuccess ? absl::StrCat("there are ", count)
                                          : std::string(cudaGetErrorString(error)),
                     "; NVIDIA's driver: ", DriverAndNeed("this library")));
  }
  RETURN_IF_ERROR(UseDevice(device));
  const cudaError_t probed = ProbeMachineCode();
  if (probed == cudaErrorNoKernelImageForDevice) {
    (void)cudaGetLastError();
    return absl::FailedPreconditionError(
        absl::StrCat("GPU ", device,
                     " cannot be used: this library was built for the compute "
                     "capabilities " CAUSEWAY_CUDA_ARCHITECTURES));
  }
  return CheckCuda(probed, absl::StrCat("looking for machine code for GPU ", device));
}

}  // namespace
}  // namespace cuda

int SwapDevice(int device) {
  if (device < 0) return -1;
  int before = -1;
  if (cudaGetDevice(&before) != cudaSuccess) (void)cudaGetLastError();
  if (before != device) (void)cuda::UseDevice(device);
  return before;
}

absl::Status CheckDeviceValues(int device) {
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess) before = -1;
  const absl::Status status = cuda::CheckDevice(device);
  SwapDevice(before);
  return status;
}

absl::StatusOr<std::unique_ptr<DeviceValues>> OpenDeviceValues(
    const FragmentPlan& plan, const ShardPlan& shards, int rank, int device,
    const v1::SyncConfig& sync, const TensorMatch& match, const DeviceOptions& options) {
  RETURN_IF_ERROR(CheckDeviceValues(device));
  auto values =
      std::make_unique<cuda::CudaDeviceValues>(plan, shards, rank, device, sync, match, options);
  RETURN_IF_ERROR(values->Allocate(options.values));
  return values;
}

}  // namespace causeway::worker
