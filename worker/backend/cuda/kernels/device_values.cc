#include "worker/site/device_values.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/backend/cuda/kernels/codec_kernels.h"
#include "worker/backend/cuda/kernels/device.h"
#include "worker/backend/cuda/kernels/device_part.h"
#include "worker/sync/shard_plan.h"
#include "worker/sync/sharded_replica.h"

namespace causeway::worker {
namespace cuda {
namespace {

// Fragments that a step touches: as many as are sent and merged after it.
int TouchedAtOnce(const FragmentPlan& plan, const v1::SyncConfig& sync) {
  const int steps = std::max(1, sync.steps_between_syncs());
  return std::min(plan.fragments(), 2 * ((plan.fragments() + steps - 1) / steps));
}

int64_t BytesOf(int32_t type) { return type == CAUSEWAY_FLOAT32 ? 4 : 2; }

class CudaDeviceValues final : public DeviceValues {
 public:
  CudaDeviceValues(const FragmentPlan& plan, const v1::SyncConfig& sync, const TensorMatch& match,
                   const DeviceOptions& options)
      : plan_(plan),
        sync_(sync),
        match_(match),
        device_(options.device),
        published_on_device_(!options.published_on_host),
        shard_plan_(plan, 1),
        keeps_all_(std::ranges::any_of(options.tensors,
                                       [](const auto& t) { return t.type != CAUSEWAY_FLOAT32; })),
        jobs_(static_cast<size_t>(plan.fragments())),
        locals_(static_cast<size_t>(plan.fragments())) {}
  ~CudaDeviceValues() override { (void)UseDevice(device_); }

  absl::Status Allocate(std::span<const causeway_device_tensor> tensors) {
    RETURN_IF_ERROR(UseDevice(device_));
    ASSIGN_OR_RETURN(setting_, Stream::Create());
    for (int i = 0; i < plan_.fragments(); ++i) {
      most_values_ = std::max(most_values_, plan_.range(i).size());
      ValueJob& job = jobs_[static_cast<size_t>(i)];
      job.values = plan_.range(i).size();
      job.range_count = static_cast<int>(match_.ranges[static_cast<size_t>(i)].size() +
                                         match_.gaps[static_cast<size_t>(i)].size());
      ASSIGN_OR_RETURN(job.ranges,
                       memory_.Allocate<ValueRange>("tables of tensors", job.range_count, ""));
    }
    ASSIGN_OR_RETURN(gaps_,
                     memory_.Allocate<float>("values between tensors", match_.gap_values, ""));
    RETURN_IF_ERROR(CheckCuda(
        cudaMemsetAsync(gaps_, 0, FloatBytes(match_.gap_values), setting_.get()), "clearing"));
    RETURN_IF_ERROR(SetTensors(tensors));
    if (keeps_all_) {
      ASSIGN_OR_RETURN(float* const all,
                       memory_.Allocate<float>("exact copies of what has 2 bytes",
                                               plan_.arena_size(), "--values=host"));
      RETURN_IF_ERROR(CheckCuda(
          cudaMemsetAsync(all, 0, FloatBytes(plan_.arena_size()), setting_.get()), "clearing"));
      for (int i = 0; i < plan_.fragments(); ++i) {
        locals_[static_cast<size_t>(i)] = all + plan_.range(i).begin;
      }
      return setting_.Wait("clearing exact copies");
    }
    for (int i = 0; i < TouchedAtOnce(plan_, sync_); ++i) {
      ASSIGN_OR_RETURN(float* const values, MakeLocal());
      free_.push_back(values);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Replica>> MakeReplica() override {
    part_ = nullptr;
    training_ = setting_.get();
    if (!keeps_all_) Release({});
    // Steps are issued to a stream that is not known yet; nothing follows it before a Gather.
    const DeviceShard shard = {
        .device = device_, .locals = locals_.data(), .training = setting_.get()};
    ASSIGN_OR_RETURN(std::unique_ptr<DevicePart> part,
                     DevicePart::Create(plan_, shard_plan_, sync_, shard,
                                        {.published_on_device = published_on_device_,
                                         .weights_changed = nullptr}));
    part_ = part.get();
    std::vector<std::unique_ptr<ReplicaPart>> parts;
    parts.push_back(std::move(part));
    return std::make_unique<ShardedReplica>(plan_, sync_, std::move(parts));
  }

  absl::Status SetTensors(std::span<const causeway_device_tensor> tensors) override {
    RETURN_IF_ERROR(UseDevice(device_));
    // What was issued before may still read the tables.
    if (part_ != nullptr) RETURN_IF_ERROR(CheckCuda(cudaDeviceSynchronize(), "before new tables"));
    int64_t between = 0;
    for (int i = 0; i < plan_.fragments(); ++i) {
      const FragmentRange& fragment = plan_.range(i);
      std::vector<ValueRange> ranges;
      for (const ArenaRange& gap : match_.gaps[static_cast<size_t>(i)]) {
        ranges.push_back({.data = gaps_ + between,
                          .first = gap.begin - fragment.begin,
                          .count = gap.end - gap.begin,
                          .type = ValueType::kOwn});
        between += ranges.back().count;
      }
      for (const causeway_range& range : match_.ranges[static_cast<size_t>(i)]) {
        const causeway_device_tensor& tensor = tensors[static_cast<size_t>(range.tensor)];
        ranges.push_back(
            {.data = static_cast<char*>(tensor.data) + range.tensor_offset * BytesOf(tensor.type),
             .first = range.arena_offset - fragment.begin,
             .count = range.count,
             .type = static_cast<ValueType>(tensor.type)});
      }
      std::ranges::sort(ranges, {}, &ValueRange::first);
      RETURN_IF_ERROR(
          CheckCuda(cudaMemcpyAsync(const_cast<ValueRange*>(jobs_[static_cast<size_t>(i)].ranges),
                                    ranges.data(), ranges.size() * sizeof(ValueRange),
                                    cudaMemcpyHostToDevice, setting_.get()),
                    "copying a table of tensors"));
      RETURN_IF_ERROR(setting_.Wait("copying a table of tensors"));  // `ranges` ends here.
    }
    return absl::OkStatus();
  }

  absl::Status Gather(std::span<const int32_t> fragments, void* stream) override {
    RETURN_IF_ERROR(UseDevice(device_));
    const auto training = static_cast<cudaStream_t>(stream);
    part_->UseStream(training);
    training_ = training;
    // Buffers that are used again may still be read, as may what is published.
    RETURN_IF_ERROR(part_->HoldUp(training));
    if (!keeps_all_) Release(fragments);
    gathered_.assign(fragments.begin(), fragments.end());
    for (const int32_t fragment : fragments) {
      ASSIGN_OR_RETURN(float* const local, Local(fragment));
      LaunchGather(jobs_[static_cast<size_t>(fragment)], local, part_->PublishedValues(fragment),
                   training);
    }
    return CheckLaunches("taking values from the trainer's tensors");
  }

  bool HasGathered(int fragment) const override {
    return std::ranges::find(gathered_, fragment) != gathered_.end();
  }

  absl::Status Scatter(std::span<const int32_t> fragments, bool published, void* stream) override {
    RETURN_IF_ERROR(UseDevice(device_));
    const auto training = static_cast<cudaStream_t>(stream);
    // The stream that was gathered in is held up by what changes values there, and not by hashes.
    if (training != training_ || published) RETURN_IF_ERROR(part_->HoldUp(training));
    for (const int32_t fragment : fragments) {
      const float* const local = locals_[static_cast<size_t>(fragment)];
      LaunchScatter(jobs_[static_cast<size_t>(fragment)],
                    published || local == nullptr ? part_->PublishedValues(fragment) : local,
                    /*own=*/!published, training);
    }
    return CheckLaunches("writing values to the trainer's tensors");
  }

  absl::Status CopyLocal(int fragment, int64_t first, std::span<float> values) override {
    RETURN_IF_ERROR(UseDevice(device_));
    const float* local = locals_[static_cast<size_t>(fragment)];
    RETURN_IF_ERROR(part_->HoldUp(setting_.get()));
    if (local == nullptr) local = part_->PublishedValues(fragment);
    RETURN_IF_ERROR(CheckCuda(cudaMemcpyAsync(values.data(), local + first, values.size_bytes(),
                                              cudaMemcpyDefault, setting_.get()),
                              "copying local values"));
    return setting_.Wait("copying local values");
  }

  absl::Status SetLocal(int fragment, int64_t first, std::span<const float> values) override {
    RETURN_IF_ERROR(UseDevice(device_));
    ASSIGN_OR_RETURN(float* const local, Local(fragment));
    RETURN_IF_ERROR(part_->HoldUp(setting_.get()));
    RETURN_IF_ERROR(CheckCuda(cudaMemcpyAsync(local + first, values.data(), values.size_bytes(),
                                              cudaMemcpyHostToDevice, setting_.get()),
                              "restoring local values"));
    return setting_.Wait("restoring local values");
  }

  absl::Status CopyGaps(std::span<float> values) override {
    return CopyAll(values.data(), gaps_, values.size_bytes(), "copying values between tensors");
  }

  absl::Status SetGaps(std::span<const float> values) override {
    return CopyAll(gaps_, values.data(), values.size_bytes(), "restoring values between tensors");
  }

 private:
  // After all that was issued, of whatever stream.
  absl::Status CopyAll(float* to, const float* from, size_t bytes, const char* what) {
    RETURN_IF_ERROR(UseDevice(device_));
    RETURN_IF_ERROR(CheckCuda(cudaDeviceSynchronize(), what));
    RETURN_IF_ERROR(
        CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, setting_.get()), what));
    return setting_.Wait(what);
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
  const v1::SyncConfig sync_;
  const TensorMatch match_;
  const int device_;
  const bool published_on_device_;
  const ShardPlan shard_plan_;
  // Tensors of two bytes need exact copies for all time: the whole arena is there.
  const bool keeps_all_;
  int64_t most_values_ = 0;  // Size of the largest fragment.
  DeviceMemory memory_;
  float* gaps_ = nullptr;       // Local values of match_.gaps.
  Stream setting_;              // For copies that are waited for.
  std::vector<ValueJob> jobs_;  // By fragment.
  std::vector<float*> locals_;  // By fragment; null: of no interest.
  std::vector<float*> free_;    // Each for the largest fragment.
  std::vector<int32_t> gathered_;
  cudaStream_t training_ = nullptr;  // That the part follows.
  DevicePart* part_ = nullptr;       // Of the last replica.
};

std::string Version(int number) { return absl::StrCat(number / 1000, ".", number % 1000 / 10); }

// Makes the device the calling thread's.
absl::Status CheckDevice(int device) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || device < 0 || device >= count) {
    (void)cudaGetLastError();
    int driver = 0;
    int runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    return absl::FailedPreconditionError(
        absl::StrCat("GPU ", device, " cannot be used: ",
                     error == cudaSuccess ? absl::StrCat("there are ", count)
                                          : std::string(cudaGetErrorString(error)),
                     "; NVIDIA's driver ",
                     driver == 0 ? "is not there, or too old"
                                 : absl::StrCat("speaks CUDA ", Version(driver), " at most"),
                     ", this library needs CUDA ", Version(runtime)));
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

absl::Status CheckTensors(const DeviceOptions& options) {
  for (size_t i = 0; i < options.tensors.size(); ++i) {
    const causeway_device_tensor& tensor = options.tensors[i];
    if (tensor.data == nullptr || tensor.type < CAUSEWAY_FLOAT32 ||
        tensor.type > CAUSEWAY_FLOAT16) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensors[", i, "] of the device must have an address and be of type ",
                       CAUSEWAY_FLOAT32, " .. ", CAUSEWAY_FLOAT16, "; its type is ", tensor.type));
    }
  }
  return absl::OkStatus();
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

absl::StatusOr<std::unique_ptr<DeviceValues>> OpenDeviceValues(const FragmentPlan& plan,
                                                               const v1::SyncConfig& sync,
                                                               const TensorMatch& match,
                                                               const DeviceOptions& options) {
  RETURN_IF_ERROR(cuda::CheckTensors(options));
  RETURN_IF_ERROR(CheckDeviceValues(options.device));
  auto values = std::make_unique<cuda::CudaDeviceValues>(plan, sync, match, options);
  RETURN_IF_ERROR(values->Allocate(options.tensors));
  return values;
}

}  // namespace causeway::worker
