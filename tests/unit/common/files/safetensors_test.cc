#include "common/files/safetensors.h"

#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/temporary_folder.h"

namespace causeway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SafetensorsTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return own_.File(name); }

  void Write(const std::string& name, const std::string& content) {
    WriteText(Path(name), content);
  }
  // A file of that header and so many bytes of data.
  void WriteTensors(const std::string& name, const std::string& header, size_t data_bytes) {
    const uint64_t length = header.size();
    std::string content(reinterpret_cast<const char*>(&length), sizeof(length));
    Write(name, content + header + std::string(data_bytes, 'x'));
  }
  std::string ErrorOf(const std::string& header, size_t data_bytes) {
    WriteTensors("file.safetensors", header, data_bytes);
    const auto file = SafetensorsFile::Open(*FileSystem::Real(), Path("file.safetensors"));
    if (file.ok()) return "";
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(file.status().message()), HasSubstr("file.safetensors"));
    return std::string(file.status().message());
  }
  std::string FolderError() {
    return std::string(SafetensorsFolder::Open(*FileSystem::Real(), folder_).status().message());
  }

  const TemporaryFolder own_;
  const std::string folder_ = own_.path();
};

TensorSource Source(const std::string& name, std::vector<int64_t> shape,
                    std::vector<uint32_t> values) {
  const uint64_t bytes = values.size() * 4;
  return {.name = name,
          .dtype = "F32",
          .shape = std::move(shape),
          .bytes = bytes,
          .read = [values = std::move(values)](uint64_t begin, std::span<uint8_t> out) {
            std::memcpy(out.data(), reinterpret_cast<const uint8_t*>(values.data()) + begin,
                        out.size());
          }};
}

std::vector<uint32_t> Words(const SafeTensor& tensor) {
  std::vector<uint32_t> words(tensor.bytes.size() / 4);
  std::memcpy(words.data(), tensor.bytes.data(), tensor.bytes.size());
  return words;
}

TEST_F(SafetensorsTest, ReadsBackWhatWasWritten) {
  ASSERT_TRUE(WriteSafetensors(*FileSystem::Real(), folder_,
                               {Source("b", {2, 2}, {1, 2, 3, 4}), Source("a", {3}, {5, 6, 7}),
                                Source("empty", {0, 9}, {})},
                               1000)
                  .ok());
  const auto folder = SafetensorsFolder::Open(*FileSystem::Real(), folder_).value();
  ASSERT_EQ(folder.tensors().size(), 3U);
  EXPECT_THAT(folder.tensors().at("b").shape, ElementsAre(2, 2));
  EXPECT_THAT(Words(folder.tensors().at("b")), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(Words(folder.tensors().at("a")), ElementsAre(5, 6, 7));
  const auto file = SafetensorsFile::Open(*FileSystem::Real(), Path(kSafetensorsFile));
  EXPECT_EQ(file->metadata().at("format"), "pt");
}

TEST_F(SafetensorsTest, LargeModelsGoIntoSeveralFilesAndASmallerExportRemovesThem) {
  const std::vector<TensorSource> tensors = {Source("a", {2}, {1, 2}),
                                             Source("b", {4}, {3, 4, 5, 6}), Source("c", {1}, {7})};
  ASSERT_TRUE(WriteSafetensors(*FileSystem::Real(), folder_, tensors, 12).ok());
  EXPECT_THAT(*FileSystem::Real()->List(folder_),
              ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                          "model-00003-of-00003.safetensors", kSafetensorsIndexFile));
  auto folder = SafetensorsFolder::Open(*FileSystem::Real(), folder_).value();
  EXPECT_THAT(Words(folder.tensors().at("b")), ElementsAre(3, 4, 5, 6));
  ASSERT_TRUE(WriteSafetensors(*FileSystem::Real(), folder_, tensors, 1000).ok());
  EXPECT_THAT(*FileSystem::Real()->List(folder_), ElementsAre(kSafetensorsFile));
}

TEST_F(SafetensorsTest, HeadersThatLieAreRefused) {
  const std::string a = R"("a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]})";
  EXPECT_EQ(ErrorOf("{" + a + "}  ", 8), "");
  // A header of one tensor, or of tensor a and a second one.
  const auto one = [](const std::string& dtype, const std::string& shape, const char* offsets) {
    return absl::StrCat(R"({"a": {"dtype": ")", dtype, R"(", "shape": )", shape,
                        R"(, "data_offsets": )", offsets, "}}");
  };
  const auto two = [&](const char* offsets) {
    return absl::StrCat("{", a, R"(, "b": {"dtype": "F32", "shape": [1], "data_offsets": )",
                        offsets, "}}");
  };
  const std::tuple<std::string, size_t, const char*> cases[] = {
      {"{" + a + "}", 7, "0 .. 8"},
      {"{" + a + "}", 9, "end at 8, the file at 9"},
      {two("[4, 8]"), 8, "without gap or overlap"},
      {two("[12, 16]"), 16, "without gap or overlap"},
      {one("F32", "[3]", "[0, 8]"), 8, "F32 [3] takes 12"},
      {one("F31", "[2]", "[0, 8]"), 8, "\"F31\" is unknown"},
      {one("F32", "[-2]", "[0, 8]"), 8, "no integer from 0 on"},
      {one("F32", "[4611686018427387904, 8]", "[0, 0]"), 0, "more values than any file"},
      {one("F32", "[2]", "[8, 0]"), 8, "ascending"},
      {one("F32", "[1,1,1,1,1,1,1,1,1]", "[0, 4]"), 4, "9 dimensions"},
      {"{" + a + "," + a + "}", 8, "twice"}};
  for (const auto& [header, bytes, words] : cases) {
    EXPECT_THAT(ErrorOf(header, bytes), HasSubstr(words)) << header;
  }
  for (const std::string& no_header :
       {one("F32", "[[[[2]]]]", "[0, 8]"), std::string("[]"), std::string("{")}) {
    EXPECT_NE(ErrorOf(no_header, 8), "") << no_header;
  }
}

TEST_F(SafetensorsTest, FilesThatAreCutAreRefused) {
  Write("file.safetensors", "1234567");
  EXPECT_THAT(
      std::string(
          SafetensorsFile::Open(*FileSystem::Real(), Path("file.safetensors")).status().message()),
      HasSubstr("only 7 bytes"));
  Write("file.safetensors", std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10));
  EXPECT_THAT(
      std::string(
          SafetensorsFile::Open(*FileSystem::Real(), Path("file.safetensors")).status().message()),
      HasSubstr("header of 18446744073709551615 bytes; 2 follow"));
}

TEST_F(SafetensorsTest, AnIndexReachesNoFileOutsideTheFolder) {
  for (const char* file : {"../secret.safetensors", "/etc/passwd", "sub/x.safetensors",
                           "..\\\\x.safetensors", "config.json", ".x.safetensors", ""}) {
    Write(kSafetensorsIndexFile, std::string(R"({"weight_map": {"a": ")") + file + "\"}}");
    EXPECT_THAT(FolderError(), HasSubstr("of this folder itself")) << file;
  }
  Write(kSafetensorsIndexFile, R"({"weight_map": {"a": "x.safetensors"}})");
  EXPECT_NE(FolderError(), "");
  WriteTensors("x.safetensors", "{}", 0);
  EXPECT_THAT(FolderError(), HasSubstr("has no tensor \"a\""));
  Write(kSafetensorsIndexFile, R"({"weight_map": 3})");
  EXPECT_THAT(FolderError(), HasSubstr("no weight_map"));
}

TEST_F(SafetensorsTest, AnIndexAndFilesThatDisagreeAreRefused) {
  const std::string one = R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})";
  WriteTensors("x.safetensors", one, 4);
  Write(kSafetensorsIndexFile, R"({"weight_map": {"a": "x.safetensors"}})");
  EXPECT_EQ(FolderError(), "");
  // The newer of the two cannot be told by looking; transformers takes the one file.
  WriteTensors(kSafetensorsFile, one, 4);
  EXPECT_THAT(FolderError(), HasSubstr("model.safetensors, which transformers takes"));
  Write(kSafetensorsIndexFile, R"({"weight_map": {"a": "model.safetensors"}})");
  EXPECT_EQ(FolderError(), "");
  // transformers takes all that is in the files that the index names.
  WriteTensors(kSafetensorsFile,
               R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},)"
               R"( "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
               8);
  EXPECT_THAT(FolderError(),
              HasSubstr("tensor \"b\", which model.safetensors.index.json does not"));
  Write(kSafetensorsIndexFile,
        R"({"weight_map": {"a": "model.safetensors", "b": "x.safetensors"}})");
  EXPECT_THAT(FolderError(), HasSubstr("places in another file"));
}

TEST_F(SafetensorsTest, AFolderOfOtherFormatsSaysWhatIsRead) {
  EXPECT_THAT(FolderError(), HasSubstr("pytorch_model.bin"));
}

}  // namespace
}  // namespace causeway
