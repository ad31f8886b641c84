// A folder of its own for every test, and short ways to fill it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "tests/unit/common/base/temporary_folder.h"
#include "worker/data/token_shard.h"

namespace causeway::worker {

class DataTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return root_ + "/" + name; }

  void WriteFile(const std::string& name, const std::string& content) {
    std::filesystem::create_directories(std::filesystem::path(Path(name)).parent_path());
    std::ofstream(Path(name), std::ios::binary) << content;
  }

  std::string ReadFile(const std::string& name) { return *files_.ReadFile(Path(name)); }

  // Shards folder/prefix_NNNNNN.bin of the tokens.
  void WriteShards(const std::string& folder, const std::string& prefix,
                   std::span<const int32_t> tokens, int64_t vocabulary_size,
                   int64_t shard_tokens = 1000) {
    ASSERT_TRUE(files_.CreateFolders(Path(folder)).ok());
    TokenShardWriter writer(files_, Path(folder), prefix, vocabulary_size, shard_tokens);
    ASSERT_TRUE(writer.Append(tokens).ok());
    ASSERT_TRUE(writer.Finish().ok());
  }

  // Overwrites one 32-bit word of a file.
  void PatchWord(const std::string& name, size_t word, int32_t value) {
    std::string content = ReadFile(name);
    std::memcpy(content.data() + 4 * word, &value, 4);
    WriteFile(name, content);
  }

  FileSystem& files_ = *FileSystem::Real();
  const TemporaryFolder folder_;
  const std::string root_ = folder_.path();
};

// 0, 1, 2, ... modulo `vocabulary_size`.
inline std::vector<int32_t> CountingTokens(int64_t count, int64_t vocabulary_size) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(i % vocabulary_size));
  return tokens;
}

}  // namespace causeway::worker
