// A folder of data after tokenizing has ended too early: on a disk that fails, fills up or loses
// its power at any call.
#include "worker/data/staged_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/common/base/fault_disk.h"
#include "tests/unit/common/base/status_is.h"
#include "worker/data/dataset.h"
#include "worker/data/text_corpus.h"

namespace causeway::worker {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSubsetOf;

class StagedDataTest : public testing::Test {
 protected:
  StagedDataTest() {
    EXPECT_TRUE(CreateFoldersDurably(disk_, "/in").ok());
    Write("/in/old.txt", std::string(4000, 'o'));
    Write("/in/new.txt", std::string(6000, 'n'));
  }

  void Write(const std::string& path, const std::string& content) {
    ASSERT_TRUE(WriteFileAtomically(disk_, path, absl::string_view(content)).ok());
  }
  static absl::Status Run(FileSystem& disk, const std::string& input, bool replace = false) {
    TokenizeOptions options;
    options.inputs = {input};
    options.output = "/out";
    options.shard_tokens = 2000;
    options.replace = replace;
    return Tokenize(disk, options).status();
  }
  // The letter that the data in the folder are made of; "" if there are none that anybody would
  // train on. A wrong mixture is a failure.
  static std::string Letter(FileSystem& disk) {
    const absl::StatusOr<Dataset> data = Dataset::Open(disk, "/out");
    if (!data.ok()) {
      EXPECT_TRUE(absl::IsUnavailable(data.status()) || absl::IsNotFound(data.status()))
          << data.status();
      return "";
    }
    std::string letters;
    for (const ShardSequence* part : {data->train().get(), data->held_out().get()}) {
      EXPECT_GT(part->tokens(), 0);
      std::vector<int32_t> tokens(static_cast<size_t>(part->tokens()));
      EXPECT_TRUE(part->Read(0, 256, tokens).ok());
      for (const int32_t token : tokens) {
        const char letter = static_cast<char>(token);
        if (letters.empty() || letters.back() != letter) letters += letter;
      }
    }
    return letters;
  }
  static std::vector<std::string> FilesIn(FaultDisk& disk, const std::string& folder) {
    std::vector<std::string> found;
    for (const std::string& path : disk.Files()) {
      if (absl::StartsWith(path, folder + "/")) found.push_back(path);
    }
    return found;
  }

  FaultDisk disk_;
};

TEST_F(StagedDataTest, AtNoMomentOfAReplacementAreThereOtherDataThanTheOldOrTheNew) {
  ASSERT_TRUE(Run(disk_, "/in/old.txt").ok());
  Write("/out/notes.txt", "mine");
  const std::unique_ptr<FaultDisk> undisturbed = disk_.Clone();
  undisturbed->FailCall(-1, FaultDisk::Fault::kInputOutput);
  ASSERT_TRUE(Run(*undisturbed, "/in/new.txt", true).ok());
  const int64_t calls = undisturbed->calls();
  const std::vector<std::string> whole = FilesIn(*undisturbed, "/out");
  EXPECT_THAT(whole, Contains("/out/notes.txt"));
  for (const FaultDisk::Fault fault :
       {FaultDisk::Fault::kInputOutput, FaultDisk::Fault::kDiskFull}) {
    for (const bool sticky : {false, true}) {
      for (const FaultDisk::Loss loss :
           {FaultDisk::Loss::kNothing, FaultDisk::Loss::kEverythingUnsynced,
            FaultDisk::Loss::kSomeUnsynced}) {
        for (int64_t call = 0; call < calls; ++call) {
          SCOPED_TRACE(absl::StrCat("call ", call, sticky ? " and later" : ""));
          const std::unique_ptr<FaultDisk> disk = disk_.Clone();
          disk->FailCall(call, fault, sticky);
          const absl::Status status = Run(*disk, "/in/new.txt", true);
          disk->Crash(loss, static_cast<uint64_t>(call));
          const std::string letter = Letter(*disk);
          if (status.ok()) {
            EXPECT_EQ(letter, "n") << disk->failed_call();
          } else {
            EXPECT_THAT((std::vector{letter}), IsSubsetOf({"o", "n", ""})) << disk->failed_call();
          }
          // Whatever is left, the same command ends it.
          const absl::Status again = Run(*disk, "/in/new.txt", true);
          ASSERT_TRUE(again.ok()) << again << " after " << disk->failed_call();
          EXPECT_EQ(FilesIn(*disk, "/out"), whole) << disk->failed_call();
          EXPECT_EQ(Letter(*disk), "n");
          EXPECT_FALSE(disk->IsFolder("/out/unfinished"));
        }
      }
    }
  }
}

TEST_F(StagedDataTest, WhatFailsLeavesTheOldDataAndNothingElse) {
  ASSERT_TRUE(Run(disk_, "/in/old.txt").ok());
  const std::vector<std::string> before = FilesIn(disk_, "/out");
  disk_.SetCapacity(disk_.UsedBytes() + 2500);
  EXPECT_THAT(Run(disk_, "/in/new.txt", true), StatusIs(kResourceExhausted));
  EXPECT_EQ(FilesIn(disk_, "/out"), before);
  EXPECT_EQ(Letter(disk_), "o");
}

TEST_F(StagedDataTest, WhatFailsInAFolderOfItsOwnTakesTheFolderAlong) {
  disk_.SetCapacity(10000 + 2500);
  EXPECT_THAT(Run(disk_, "/in/new.txt"), StatusIs(kResourceExhausted));
  EXPECT_FALSE(disk_.IsFolder("/out"));
}

TEST_F(StagedDataTest, DataThatAreNotFinishedAreNotTakenForForeignOnes) {
  // As a run leaves them that was killed while it wrote.
  ASSERT_TRUE(CreateFoldersDurably(disk_, "/out/unfinished").ok());
  ASSERT_TRUE(Run(disk_, "/in/old.txt").ok());
  Write("/killed", disk_.Content("/out/train_000000.bin"));
  ASSERT_TRUE(CreateFoldersDurably(disk_, "/out2/unfinished").ok());
  Write("/out2/unfinished/train_000000.bin", disk_.Content("/killed"));
  const absl::StatusOr<Dataset> data = Dataset::Open(disk_, "/out2");
  EXPECT_THAT(data, StatusIs(kUnavailable,
                             AllOf(HasSubstr("/out2/unfinished"), HasSubstr("run it again"))));
}

TEST_F(StagedDataTest, AFolderOfSomebodyElsesWithItsNameIsLeftAlone) {
  ASSERT_TRUE(CreateFoldersDurably(disk_, "/out/unfinished").ok());
  Write("/out/unfinished/train_000000.bin", "ours, of a run that was killed");
  Write("/out/unfinished/novel.txt", "theirs");
  const std::vector<std::string> before = FilesIn(disk_, "/out");
  for (const bool replace : {false, true}) {
    EXPECT_THAT(Run(disk_, "/in/new.txt", replace),
                StatusIs(kFailedPrecondition,
                         AllOf(HasSubstr("novel.txt"), HasSubstr("move it elsewhere"))));
    EXPECT_EQ(FilesIn(disk_, "/out"), before);
  }
  ASSERT_TRUE(disk_.Remove("/out/unfinished/novel.txt").ok());
  ASSERT_TRUE(Run(disk_, "/in/new.txt").ok());
  EXPECT_EQ(Letter(disk_), "n");
}

TEST_F(StagedDataTest, TwoAtOnceAreRefused) {
  const auto first = StagedData::Create(disk_, "/out", false).value();
  EXPECT_THAT(StagedData::Create(disk_, "/out", false),
              StatusIs(kAlreadyExists, HasSubstr("belongs to another process")));
  EXPECT_TRUE(disk_.IsFolder("/out/unfinished"));
}

TEST_F(StagedDataTest, ATokenizerThatTheOldDataBroughtAlongGoesWithThem) {
  DataDescription old;
  old.tokenizer = "tokenizer.json";
  old.vocabulary_size = 10;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "train_000007.bin"}) {
    ASSERT_TRUE(CreateFoldersDurably(disk_, "/out").ok());
    Write(absl::StrCat("/out/", name), "old");
  }
  ASSERT_TRUE(WriteDataJson(disk_, "/out", old).ok());
  ASSERT_TRUE(Run(disk_, "/in/new.txt", true).ok());
  EXPECT_THAT(FilesIn(disk_, "/out"),
              ElementsAre("/out/data.json", "/out/held_out.documents", "/out/held_out_000000.bin",
                          "/out/train.documents", "/out/train_000000.bin", "/out/train_000001.bin",
                          "/out/train_000002.bin"));
}

}  // namespace
}  // namespace causeway::worker
