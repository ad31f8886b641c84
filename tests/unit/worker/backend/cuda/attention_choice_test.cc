// Who computes attention, with a cuDNN that is made up.
#include "worker/backend/cuda/attention_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/unit/common/base/status_is.h"
#include "tests/unit/worker/backend/backend_contract.h"
#include "tests/unit/worker/backend/cuda/test_backend.h"

namespace causeway::worker::cuda {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr AttentionShape kShape = {
    .sequences = 2, .length = 16, .heads = 4, .kv_heads = 2, .head_dim = 8};
constexpr char kNamed[] = "cuDNN 9.1.0";

// Computes with our own kernels.
class FakeCudnn final : public AttentionProvider {
 public:
  FakeCudnn(std::string name, size_t workspace_bytes, int* passes)
      : name_(std::move(name)), workspace_bytes_(workspace_bytes), passes_(*passes) {}
  std::string name() const override { return name_; }
  size_t workspace_bytes() const override { return workspace_bytes_; }
  void UseWorkspace(void* workspace) override { workspace_ = workspace; }
  absl::Status Forward(const AttentionCall& call, cudaStream_t stream) override {
    if (workspace_ == nullptr) return absl::InternalError("no workspace");
    ++passes_;
    return own_.Forward(call, stream);
  }
  absl::Status Backward(const AttentionCall& call, cudaStream_t stream) override {
    if (workspace_ == nullptr) return absl::InternalError("no workspace");
    ++passes_;
    return own_.Backward(call, stream);
  }

 private:
  const std::string name_;
  const size_t workspace_bytes_;
  int& passes_;
  OwnAttention own_;
  void* workspace_ = nullptr;
};

class AttentionChoiceTest : public ::testing::Test {
 protected:
  AttentionChoiceTest() {
    HaveDevices(1);
    choice_.plans = &plans_;
    choice_.warn = [this](const std::string& text) { warnings_.push_back(text); };
    choice_.inform = [this](const std::string& text) { reasons_.push_back(text); };
    choice_.make_cudnn =
        [this](const AttentionShape&) -> absl::StatusOr<std::unique_ptr<AttentionProvider>> {
      if (!cudnn_.ok()) return cudnn_;
      return std::make_unique<FakeCudnn>(version_, workspace_bytes_, &passes_);
    };
  }

  absl::StatusOr<std::string> Choose(AttentionPreference preference) {
    choice_.preference = preference;
    DeviceMemory memory;
    const auto made = ChooseAttention(choice_, {.name = "GPU", .major = 9}, kShape, &memory);
    if (!made.ok()) return made.status();
    workspace_ = memory.bytes();
    return (*made)->name();
  }
  std::string MustChoose(AttentionPreference preference) {
    const absl::StatusOr<std::string> name = Choose(preference);
    EXPECT_TRUE(name.ok()) << name.status();
    return name.value_or("");
  }

  static MakeAttention By(const AttentionChoice& choice) {
    return [&choice](const DeviceInfo& device, const AttentionShape& shape, DeviceMemory* memory) {
      return ChooseAttention(choice, device, shape, memory);
    };
  }

  GemmPlanStore plans_;
  AttentionChoice choice_;
  absl::Status cudnn_;
  std::string version_ = kNamed;
  size_t workspace_bytes_ = 1000;
  int passes_ = 0;
  size_t workspace_ = 0;
  std::vector<std::string> warnings_, reasons_;
};

TEST_F(AttentionChoiceTest, CudnnIsTakenWhereItIsAndKept) {
  EXPECT_EQ(MustChoose(AttentionPreference::kAuto), kNamed);
  EXPECT_GE(workspace_, 1000U);
  EXPECT_EQ(MustChoose(AttentionPreference::kAuto), kNamed);
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_THAT(reasons_, IsEmpty());
}

TEST_F(AttentionChoiceTest, OwnKernelsOfBeforeStayAlthoughCudnnIsThere) {
  EXPECT_EQ(MustChoose(AttentionPreference::kOwn), kOwnAttention);
  EXPECT_EQ(workspace_, 0U);
  EXPECT_EQ(MustChoose(AttentionPreference::kAuto), kOwnAttention);
}

TEST_F(AttentionChoiceTest, WithoutCudnnOwnKernelsAreTakenAndKept) {
  cudnn_ = absl::FailedPreconditionError("not installed");
  EXPECT_EQ(MustChoose(AttentionPreference::kAuto), kOwnAttention);
  EXPECT_THAT(reasons_, ElementsAre(HasSubstr("not installed")));
  cudnn_ = absl::OkStatus();
  EXPECT_EQ(MustChoose(AttentionPreference::kAuto), kOwnAttention);
  choice_.make_cudnn = nullptr;
  EXPECT_EQ(MustChoose(AttentionPreference::kAuto), kOwnAttention);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(AttentionChoiceTest, WhereItsWorkspaceDoesNotFitOwnKernelsAreTakenAndStay) {
  EXPECT_EQ(MustChoose(AttentionPreference::kAuto), kNamed);
  choice_.sparing = true;
  EXPECT_EQ(MustChoose(AttentionPreference::kAuto), kOwnAttention);
  EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr(kNamed), HasSubstr("does not fit"))));
  choice_.sparing = false;
  EXPECT_EQ(MustChoose(AttentionPreference::kAuto), kOwnAttention);
}

TEST_F(AttentionChoiceTest, ALostGpuIsNotTakenForALibraryThatRefuses) {
  cudnn_ = absl::UnavailableError("the GPU is lost");
  EXPECT_EQ(Choose(AttentionPreference::kAuto).status(), cudnn_);
}

TEST_F(AttentionChoiceTest, GoingOnWithoutTheLibraryOfBeforeIsSaid) {
  EXPECT_EQ(MustChoose(AttentionPreference::kAuto), kNamed);
  cudnn_ = absl::FailedPreconditionError("libcudnn.so.9 was not found");
  EXPECT_EQ(MustChoose(AttentionPreference::kAuto), kOwnAttention);
  EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr(kNamed), HasSubstr(kOwnAttention),
                                           HasSubstr("libcudnn.so.9 was not found"))));
  // From then on it is the one of before.
  cudnn_ = absl::OkStatus();
  EXPECT_EQ(MustChoose(AttentionPreference::kAuto), kOwnAttention);
  EXPECT_EQ(warnings_.size(), 1U);
}

TEST_F(AttentionChoiceTest, GoingOnWithAnotherVersionIsSaid) {
  EXPECT_EQ(MustChoose(AttentionPreference::kAuto), kNamed);
  version_ = "cuDNN 9.2.0";
  EXPECT_EQ(MustChoose(AttentionPreference::kAuto), "cuDNN 9.2.0");
  EXPECT_EQ(MustChoose(AttentionPreference::kAuto), "cuDNN 9.2.0");
  EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("9.1.0"), HasSubstr("9.2.0"))));
}

TEST_F(AttentionChoiceTest, AnExplicitChoiceSaysIfItIsAnotherThanBefore) {
  EXPECT_EQ(MustChoose(AttentionPreference::kOwn), kOwnAttention);
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_EQ(MustChoose(AttentionPreference::kCudnn), kNamed);
  EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("--attention"), HasSubstr(kOwnAttention),
                                           HasSubstr(kNamed))));
  EXPECT_EQ(MustChoose(AttentionPreference::kAuto), kNamed);
}

TEST_F(AttentionChoiceTest, WhatWasAskedForAndCannotBeIsRefusedWithTheReason) {
  cudnn_ = absl::FailedPreconditionError("libcudnn.so.9 was not found");
  absl::Status status = Choose(AttentionPreference::kCudnn).status();
  EXPECT_THAT(status, StatusIs(kFailedPrecondition,
                               AllOf(HasSubstr("libcudnn.so.9"), HasSubstr("--attention=own"))));
  choice_.make_cudnn = nullptr;
  status = Choose(AttentionPreference::kCudnn).status();
  EXPECT_THAT(status, StatusIs(kFailedPrecondition, AllOf(HasSubstr("built without cuDNN"),
                                                          HasSubstr("cudnn_frontend.h"))));
}

TEST_F(AttentionChoiceTest, DocumentsAreKeptApartByOwnKernels) {
  choice_.document_masking = true;
  EXPECT_EQ(MustChoose(AttentionPreference::kAuto), kOwnAttention);
  EXPECT_EQ(MustChoose(AttentionPreference::kOwn), kOwnAttention);
  EXPECT_THAT(Choose(AttentionPreference::kCudnn),
              StatusIs(kInvalidArgument,
                       AllOf(HasSubstr("train.document_masking"), HasSubstr("--attention=own"))));
}

TEST_F(AttentionChoiceTest, AnotherShapeIsChosenByItself) {
  EXPECT_EQ(MustChoose(AttentionPreference::kAuto), kNamed);
  DeviceMemory memory;
  AttentionShape longer = kShape;
  longer.length = 32;
  cudnn_ = absl::FailedPreconditionError("not a shape of cuDNN's");
  const auto made = ChooseAttention(choice_, {.name = "GPU", .major = 9}, longer, &memory).value();
  EXPECT_EQ(made->name(), kOwnAttention);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(AttentionChoiceTest, TheChoiceOutlivesTheWorker) {
  EXPECT_EQ(MustChoose(AttentionPreference::kAuto), kNamed);
  EXPECT_TRUE(plans_.changed());
  GemmPlanStore read;
  ASSERT_TRUE(read.Parse(plans_.Text(), "matrix_products.json").ok());
  choice_.plans = &read;
  EXPECT_EQ(MustChoose(AttentionPreference::kAuto), kNamed);
  EXPECT_FALSE(read.changed());
  EXPECT_THAT(warnings_, IsEmpty());
}

// The whole way: a backend that trains with another provider, of the same bits here.
TEST_F(AttentionChoiceTest, ABackendTrainsWithWhatWasChosenAndSaysSo) {
  const v1::RunConfig config = ContractConfig("");
  const FragmentPlan plan = FragmentPlan::Create(config).value();
  CudaBackend::Options options = TestOptions(1);
  options.make_attention = By(choice_);
  const auto backend = CudaBackend::Create(config, plan, options).value();
  EXPECT_EQ(backend->attention(), kNamed);
  EXPECT_THAT(backend->Describe(), HasSubstr(std::string("attention by ") + kNamed));
  EXPECT_GT(passes_, 0);
  EXPECT_TRUE(backend->Step(1, ContractReader(1)).ok());
}

// A workspace larger than the emulated device: no level fits with it, all do without.
TEST_F(AttentionChoiceTest, ABackendTriesOwnKernelsBeforeItRecomputes) {
  const v1::RunConfig config = ContractConfig("");
  const FragmentPlan plan = FragmentPlan::Create(config).value();
  workspace_bytes_ = size_t{1} << 42;
  CudaBackend::Options options = TestOptions(1);
  options.make_attention = By(choice_);
  EXPECT_THAT(CudaBackend::Create(config, plan, options), StatusIs(kResourceExhausted));
  AttentionChoice sparing = choice_;
  sparing.sparing = true;
  options.make_sparing_attention = By(sparing);
  const auto backend = CudaBackend::Create(config, plan, options).value();
  EXPECT_EQ(backend->attention(), kOwnAttention);
  EXPECT_EQ(backend->recompute(), Recompute::kNone);
}

}  // namespace
}  // namespace causeway::worker::cuda
