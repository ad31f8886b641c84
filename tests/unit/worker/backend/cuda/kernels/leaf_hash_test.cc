// The leaves that a device hashes have the checksums of the host's.
#include "worker/backend/cuda/kernels/codec_kernels.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/base/checksum.h"
#include "common/base/random.h"
#include "tests/unit/worker/backend/cuda/kernels/kernel_testing.h"
#include "worker/backend/cuda/kernels/device.h"

namespace causeway::worker::cuda {
namespace {

std::vector<uint8_t> RandomBytes(size_t size) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < size; ++i) {
    bytes.push_back(static_cast<uint8_t>(static_cast<int>(64 * RandomNormal(1, 2, i))));
  }
  return bytes;
}

std::vector<unsigned long long> Hash(const std::vector<uint8_t>& bytes,
                                     const std::vector<HashLeaf>& leaves) {
  TestDevice device;
  auto* const out = device.Allocate<unsigned long long>(std::ssize(leaves));
  LaunchLeafHashes(device.Upload(bytes), device.Upload(leaves), std::ssize(leaves), out,
                   device.stream());
  return device.Download(out, std::ssize(leaves));
}

TEST(LeafHashTest, EveryLengthHashesAsOnTheHost) {
  // One stripe more or less than a block of the hash, than what a block of threads takes at once.
  const std::vector<int64_t> sizes = {256,   960,   1024,  1088,  2048,       65536 - 64,
                                      65536, 65600, 66560, 66624, 131072 + 64};
  std::vector<HashLeaf> leaves;
  int64_t offset = 48;
  for (const int64_t size : sizes) {
    leaves.push_back({offset, size});
    offset += size + 16;
  }
  const std::vector<uint8_t> bytes = RandomBytes(static_cast<size_t>(offset));
  const std::vector<unsigned long long> hashes = Hash(bytes, leaves);
  for (size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_EQ(hashes[i], Checksum64(std::span(bytes).subspan(static_cast<size_t>(leaves[i].offset),
                                                             static_cast<size_t>(leaves[i].bytes))))
        << leaves[i].bytes << " bytes";
  }
}

TEST(LeafHashTest, AWholeLeafHashesAsOnTheHost) {
  const std::vector<uint8_t> bytes = RandomBytes(kTreeLeafBytes);
  EXPECT_EQ(Hash(bytes, {{0, std::ssize(bytes)}})[0], Checksum64(bytes));
}

TEST(LeafHashTest, NoLeavesAreNoWork) {
  LaunchLeafHashes(nullptr, nullptr, 0, nullptr, nullptr);
  EXPECT_TRUE(CheckLaunches("hashing nothing").ok());
}

}  // namespace
}  // namespace causeway::worker::cuda
