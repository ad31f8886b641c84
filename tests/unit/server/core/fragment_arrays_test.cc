#include "server/core/fragment_arrays.h"

#include <filesystem>

#include "gtest/gtest.h"
#include "tests/unit/common/base/temporary_folder.h"

namespace causeway::server {
namespace {

constexpr size_t kValues = (size_t{5} << 20) + 77;  // More than one piece, and a part of one.
constexpr uint64_t kOffset = 4096;

FragmentArrays::Set MakeSet() {
  FragmentArrays::Set set;
  for (size_t i = 0; i < kValues; ++i) {
    set.theta.push_back(static_cast<float>(i));
    set.published.push_back(-static_cast<float>(i));
  }
  set.optimizer.emplace_back(kValues, 0.5F);
  return set;
}

bool Same(const FragmentArrays::Set& a, const FragmentArrays::Set& b) {
  return a.theta == b.theta && a.published == b.published && a.optimizer == b.optimizer;
}

class FragmentArraysTest : public testing::TestWithParam<int> {
 protected:
  FragmentArraysTest() { arrays_.set() = MakeSet(); }
  ThreadPool* pool() { return GetParam() > 1 ? &pool_ : nullptr; }

  const TemporaryFolder folder_;
  ThreadPool pool_{GetParam()};
  const std::unique_ptr<ScratchFile> scratch_ =
      ScratchFile::Create(folder_.path(), kOffset + FragmentArrays::BytesAtRest(kValues, 1))
          .value();
  FragmentArrays arrays_{kValues, 1, scratch_.get(), kOffset};
};

INSTANTIATE_TEST_SUITE_P(Threads, FragmentArraysTest, testing::Values(1, 3));

TEST_P(FragmentArraysTest, WhatRestsComesBackAndIsNotInMemoryMeanwhile) {
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(arrays_.Rest(pool()).ok());
    EXPECT_TRUE(arrays_.at_rest());
    EXPECT_EQ(arrays_.set().theta.capacity() + arrays_.set().published.capacity(), 0);
    arrays_.Expect();
    EXPECT_TRUE(Same(arrays_.Copy().value(), MakeSet()));
    std::vector<float> published(kValues);
    ASSERT_TRUE(arrays_.CopyPublished(published).ok());
    EXPECT_EQ(published.back(), MakeSet().published.back());
    EXPECT_TRUE(arrays_.at_rest());
    ASSERT_TRUE(arrays_.Load(pool()).ok());
    EXPECT_FALSE(arrays_.at_rest());
    EXPECT_TRUE(Same(arrays_.set(), MakeSet()));
    EXPECT_TRUE(Same(arrays_.Copy().value(), MakeSet()));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path())) << "the scratch file has a name";
}

TEST_P(FragmentArraysTest, OtherBytesThanWereWrittenAreNoticed) {
  ASSERT_TRUE(arrays_.Rest(pool()).ok());
  const std::vector<uint8_t> byte = {1};
  // The last byte of the published values.
  ASSERT_TRUE(scratch_->Write(kOffset + 2 * kValues * sizeof(float) - 1, byte).ok());
  EXPECT_EQ(arrays_.Load(pool()).code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(arrays_.at_rest());
  EXPECT_EQ(arrays_.Copy().status().code(), absl::StatusCode::kDataLoss);
  std::vector<float> published(kValues);
  EXPECT_EQ(arrays_.CopyPublished(published).code(), absl::StatusCode::kDataLoss);
}

TEST(FragmentArrays, WithoutAScratchFileTheyStay) {
  FragmentArrays arrays(kValues, 1, nullptr, 0);
  arrays.set() = MakeSet();
  ASSERT_TRUE(arrays.Rest(nullptr).ok());
  EXPECT_FALSE(arrays.at_rest());
  EXPECT_TRUE(Same(arrays.set(), MakeSet()));
}

TEST(ScratchFile, ADiskThatHasNotAsMuchSaysSo) {
  const TemporaryFolder folder;
  const auto status = ScratchFile::Create(folder.path(), uint64_t{1} << 60).status();
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_FALSE(ScratchFile::Create(folder.File("missing"), 1).ok());
}

}  // namespace
}  // namespace causeway::server
