#include "worker/site/device_values.h"

#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "common/params/run_config.h"
#include "tests/emulation/emulator.h"
#include "tests/unit/common/base/status_is.h"
#include "worker/site/site_arguments.h"
#include "worker/site/site_values.h"

namespace causeway::worker {
namespace {

using testing::HasSubstr;

constexpr size_t kMemory = 1 << 21;
// Tensor `a` has more than one chunk of a codec, and `b` begins in the second one.
constexpr int64_t kValues = 5000;
constexpr int64_t kChunk = 4096;

class DeviceValuesTest : public testing::Test {
 protected:
  DeviceValuesTest() {
    emulation::Machine machine;
    machine.devices = 2;
    machine.memory = kMemory;
    emulation::SetMachine(machine);
    config_ = ParseRunConfig(R"(tensors { tensor { name: "a" shape: [5000] }
                                          tensor { name: "b" shape: [5000] } }
                                sync { fragments: 1 steps_between_syncs: 10 codec_down: FP32 })",
                             "test")
                  .value();
    EXPECT_TRUE(CompleteRunConfig(config_).ok());
    plan_.emplace(FragmentPlan::Create(config_).value());
  }

  // `a` is on the first device, `b` on `device_of_b`, which may be the same one.
  absl::Status Open(int device_of_b) {
    options_ = {.devices = {0},
                .values = {At(a_.data(), 0, 0, 0), At(b_.data(), 1, 0, device_of_b)}};
    if (device_of_b != 0) options_.devices.push_back(device_of_b);
    values_.emplace(config_, *plan_);
    const absl::Status matched =
        values_->Match(std::vector<GivenTensor>{{"a", {kValues}}, {"b", {kValues}}},
                       SharesOf(options_), static_cast<int>(options_.devices.size()));
    return matched.ok() ? values_->Open(0, options_) : matched;
  }

  // From `begin` on of a tensor.
  static causeway_device_values At(float* data, int64_t tensor, int64_t begin, int32_t device) {
    return {.data = data + begin,
            .tensor = tensor,
            .begin = begin,
            .end = kValues,
            .type = CAUSEWAY_FLOAT32,
            .device = device};
  }
  absl::Status Gather(size_t device = 0) { return values_->devices[device]->Gather(all_, nullptr); }

  const std::vector<int32_t> all_ = {0};
  std::vector<float> a_ = std::vector<float>(kValues, 1);
  std::vector<float> b_ = std::vector<float>(kValues, 2);
  v1::RunConfig config_;
  std::optional<FragmentPlan> plan_;
  DeviceOptions options_;
  std::optional<SiteValues> values_;
};

TEST_F(DeviceValuesTest, APartThatIsGoneIsNotUsed) {
  ASSERT_EQ(Open(0), absl::OkStatus());
  constexpr char kGone[] = "the last replica was not made, or is gone";
  EXPECT_THAT(Gather(), StatusIs(kFailedPrecondition, HasSubstr(kGone)));
  auto part = values_->MakePart().value();
  EXPECT_EQ(Gather(), absl::OkStatus());
  part.reset();
  EXPECT_THAT(Gather(), StatusIs(kFailedPrecondition, HasSubstr(kGone)));
  EXPECT_THAT(values_->devices[0]->Scatter(all_, true, nullptr),
              StatusIs(kFailedPrecondition, HasSubstr(kGone)));
  // Another one finds no memory.
  void* rest = nullptr;
  ASSERT_EQ(cudaMalloc(&rest, kMemory - emulation::AllocatedBytes(0) - 1000), cudaSuccess);
  EXPECT_THAT(values_->MakePart().status(),
              StatusIs(kResourceExhausted, HasSubstr("the memory of GPU 0 does not")));
  EXPECT_THAT(Gather(), StatusIs(kFailedPrecondition, HasSubstr(kGone)));
  ASSERT_EQ(cudaFree(rest), cudaSuccess);
  part = values_->MakePart().value();
  EXPECT_EQ(Gather(), absl::OkStatus());
}

TEST_F(DeviceValuesTest, EachOfSeveralDevicesIsToldWhereAllIsThatItOwns) {
  ASSERT_EQ(Open(1), absl::OkStatus());
  const auto parts = values_->MakeParts().value();
  ASSERT_EQ(parts.size(), 2U);
  const int64_t in_second_chunk =
      2 * kChunk - (kValues + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
  EXPECT_EQ(values_->pieces[0].back().end, 2 * kChunk);
  EXPECT_THAT(Gather(0), StatusIs(kFailedPrecondition, HasSubstr("call causeway_site_move")));
  EXPECT_EQ(Gather(1), absl::OkStatus());
  EXPECT_FALSE(values_->HasLocal(0));
  std::vector<causeway_device_values> all = options_.values;
  const DeviceValues& first = *values_->devices[0];
  EXPECT_THAT(first.CheckMove(all),
              StatusIs(kNotFound, HasSubstr("values of GPU 0 must be all that rank 0 owns")));
  // That the other device has them counts for nothing here.
  all.push_back(At(b_.data(), 1, 0, 0));
  all.back().end = in_second_chunk;
  for (const auto& device : values_->devices) {
    EXPECT_EQ(device->CheckMove(all), absl::OkStatus());
    EXPECT_EQ(device->Move(all), absl::OkStatus());
  }
  EXPECT_EQ(Gather(0), absl::OkStatus());
  EXPECT_TRUE(values_->HasLocal(0));
  all.push_back(all.back());
  EXPECT_THAT(first.CheckMove(all),
              StatusIs(kInvalidArgument, HasSubstr("values of GPU 0 come twice")));
  EXPECT_EQ(values_->devices[1]->CheckMove(all), absl::OkStatus());
}

TEST_F(DeviceValuesTest, OptionsThatCannotBeAreRefused) {
  const int32_t numbers[] = {0, 1};
  causeway_device_values values = At(a_.data(), 0, 0, 2);
  causeway_device device = {.size = sizeof(device),
                            .devices = numbers,
                            .device_count = 2,
                            .published_on_host = 0,
                            .values = &values,
                            .value_count = 1};
  EXPECT_THAT(ReadDevice(&device).status(),
              StatusIs(kInvalidArgument, HasSubstr("which is none of devices")));
  values.device = 1;
  EXPECT_EQ(SharesOf(**ReadDevice(&device))[0].rank, 1);
  device.device_count = 0;
  EXPECT_THAT(ReadDevice(&device).status(),
              StatusIs(kInvalidArgument, HasSubstr("1 .. 64 numbers of devices; 0")));
}

}  // namespace
}  // namespace causeway::worker
