#include "worker/data/choice_task.h"

#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

std::string TaskPath() { return testing::TempDir() + "/choice_task.bin"; }

// As llm.c's writer lays it out: one example, label 1 of 2.
std::vector<uint16_t> OneExample() { return {65535, 26, 0, 1, 2, 3, 10, 11, 12, 1, 13, 1, 14}; }

absl::StatusOr<std::vector<ChoiceExample>> ReadWords(std::vector<int32_t> header,
                                                     const std::vector<uint16_t>& words) {
  header.resize(256);
  std::string content(reinterpret_cast<const char*>(header.data()), 1024);
  content.append(reinterpret_cast<const char*>(words.data()), words.size() * 2);
  EXPECT_TRUE(
      WriteFileAtomically(*FileSystem::Real(), TaskPath(), absl::string_view(content)).ok());
  return ReadChoiceTask(*FileSystem::Real(), TaskPath(), 100);
}

std::string ErrorOf(const std::vector<int32_t>& header, const std::vector<uint16_t>& words) {
  const auto task = ReadWords(header, words);
  EXPECT_EQ(task.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(task.status().message());
}

TEST(ChoiceTask, ReadsTheFormatOfLlmC) {
  const auto task = ReadWords({20240522, 1, 1, 26}, OneExample());
  ASSERT_TRUE(task.ok()) << task.status();
  ASSERT_EQ(task->size(), 1U);
  EXPECT_EQ(task->front().label, 1);
  EXPECT_EQ(task->front().context, (std::vector<int32_t>{10, 11, 12}));
  EXPECT_EQ(task->front().completions, (std::vector<std::vector<int32_t>>{{13}, {14}}));
}

TEST(ChoiceTask, FilesThatLieAreRefusedByExample) {
  const std::vector<int32_t> header = {20240522, 1, 1, 26};
  EXPECT_THAT(ErrorOf({20240520, 1, 1}, OneExample()), HasSubstr("begins with 20240520"));
  EXPECT_THAT(ErrorOf({20240522, 3, 1}, OneExample()), HasSubstr("version 3"));
  EXPECT_THAT(ErrorOf({20240522, 1, 2000000000}, OneExample()), HasSubstr("announces 2000000000"));
  EXPECT_THAT(ErrorOf({20240522, 1, -1}, OneExample()), HasSubstr("announces -1"));
  const auto with = [](size_t at, uint16_t word) {
    std::vector<uint16_t> words = OneExample();
    words[at] = word;
    return words;
  };
  EXPECT_THAT(ErrorOf(header, with(0, 1)), HasSubstr("example 0: it begins with 1"));
  EXPECT_THAT(ErrorOf(header, with(1, 28)), HasSubstr("26 bytes, and says 28"));
  EXPECT_THAT(ErrorOf(header, with(3, 2)), HasSubstr("label is 2 of 2"));
  EXPECT_THAT(ErrorOf(header, with(4, 1)), HasSubstr("of 1 completions"));
  EXPECT_THAT(ErrorOf(header, with(5, 60000)), HasSubstr("cut short"));
  EXPECT_THAT(ErrorOf(header, with(6, 100)), HasSubstr("token 100 is outside"));
  EXPECT_THAT(ErrorOf(header, with(11, 0)), HasSubstr("no tokens"));
  std::vector<uint16_t> more = OneExample();
  more.push_back(1);
  EXPECT_THAT(ErrorOf(header, more), HasSubstr("goes on"));
}

TEST(ChoiceTask, LargeVocabulariesTakeTheWiderVersion) {
  for (const int32_t token : {7, 65534, 65535, 150000}) {
    std::vector<ChoiceExample> examples(2);
    for (ChoiceExample& example : examples) {
      example = {.label = 2, .context = {1, token}, .completions = {{2}, {3, 4}, {token}}};
    }
    ASSERT_TRUE(WriteChoiceTask(*FileSystem::Real(), TaskPath(), examples).ok());
    const std::string content = *FileSystem::Real()->ReadFile(TaskPath());
    int32_t version = 0;
    std::memcpy(&version, content.data() + 4, 4);
    EXPECT_EQ(version, token < 65535 ? 1 : 2);
    const auto task = ReadChoiceTask(*FileSystem::Real(), TaskPath(), 200000);
    ASSERT_TRUE(task.ok()) << task.status();
    ASSERT_EQ(task->size(), 2U);
    EXPECT_EQ((*task)[1].context, examples[1].context);
    EXPECT_EQ((*task)[1].completions, examples[1].completions);
    EXPECT_EQ((*task)[1].label, 2);
  }
}

TEST(ChoiceTask, NoneIsWrittenThatCouldNotBeRead) {
  const ChoiceExample good = {.label = 0, .context = {1}, .completions = {{2}, {3}}};
  ChoiceExample bad = good;
  bad.label = 2;
  EXPECT_THAT(std::string(WriteChoiceTask(*FileSystem::Real(), TaskPath(), {good, bad}).message()),
              HasSubstr("example 1"));
  bad = good;
  bad.completions[1].clear();
  EXPECT_FALSE(WriteChoiceTask(*FileSystem::Real(), TaskPath(), {bad}).ok());
  EXPECT_FALSE(WriteChoiceTask(*FileSystem::Real(), TaskPath(), {}).ok());
}

}  // namespace
}  // namespace causeway::worker
