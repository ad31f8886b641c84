// A copy of a run directory, fed message by message, without sockets.
#include "server/standby/run_copy.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/base/temporary_folder.h"
#include "tests/unit/server/store/scripted_run.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

// A run directory that can be closed and opened again.
class Directory {
 public:
  Directory(std::string folder, bool is_copy) : folder_(std::move(folder)), is_copy_(is_copy) {
    Open();
  }
  void Open() {
    store_ = nullptr;
    store_ = RunDirectoryStore::Open(*FileSystem::Real(), folder_, {.durable = false}).value();
    const auto run = store_->Recover().value();
    if (is_copy_) {
      ASSERT_EQ(store_->BeginCopy(), absl::OkStatus());
    }
    fingerprint_ = run.has_value() ? *Fingerprint(*store_, run) : "";
  }
  void Close() { store_ = nullptr; }
  // Returns what a coordinator would find.
  std::string Reopened() {
    Open();
    return fingerprint_;
  }
  RunDirectoryStore& store() { return *store_; }
  // Every blob by its name.
  std::map<std::string, std::string> Files() {
    std::map<std::string, std::string> files;
    const std::vector<BlobFolder::Entry> entries = *store_->blobs().List();
    for (const BlobFolder::Entry& entry : entries) {
      files[entry.file] = *FileSystem::Real()->ReadFile(store_->blobs().Path(entry.file));
    }
    return files;
  }

 private:
  const std::string folder_;
  const bool is_copy_;
  std::unique_ptr<RunDirectoryStore> store_;
  std::string fingerprint_;
};

class RunCopyTest : public testing::Test {
 protected:
  // Sends until the copy lacks nothing; a cut comes before message number `cut`, counted from 0.
  absl::Status Follow(Directory& original, RunCopy& copy, int cut = -1) {
    int messages = 0;
    v1::FollowRequest request = copy.Ask();
    for (;;) {
      absl::Status taken;
      const absl::StatusOr<bool> sent =
          SendWhatLacks(original.store(), request, [&](const v1::FollowResponse& response) {
            if (messages++ == cut) return false;
            taken = copy.Take(response).status();
            return taken.ok();
          });
      RETURN_IF_ERROR(taken);
      if (absl::IsCancelled(sent.status()) || (sent.ok() && !*sent)) {
        messages_ = messages;
        return absl::OkStatus();
      }
      RETURN_IF_ERROR(sent.status());
      request = copy.Ask();
    }
  }
  absl::Status Follow(Directory& original, Directory& copy, int cut = -1) {
    RunCopy follower(copy.store(), "spare");
    return Follow(original, follower, cut);
  }
  void ExpectSame(Directory& original, Directory& copy) {
    EXPECT_EQ(copy.store().Position().commits(), original.store().Position().commits());
    EXPECT_EQ(copy.store().Position().digest(), original.store().Position().digest());
    EXPECT_EQ(copy.Files(), original.Files());
    EXPECT_EQ(copy.Reopened(), original.Reopened());
  }
  // An original and its copy, in folders of these names with `suffix`.
  std::array<std::unique_ptr<Directory>, 2> MakeBoth(const std::string& suffix = "") {
    return {std::make_unique<Directory>(parent_.File("original" + suffix), /*is_copy=*/false),
            std::make_unique<Directory>(parent_.File("copy" + suffix), /*is_copy=*/true)};
  }
  void Take(Directory& directory, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      ASSERT_EQ(life_[i].take(directory.store()), absl::OkStatus()) << life_[i].name;
    }
  }

  // The copy has every commit, byte for byte, as soon as it is made.
  void FollowEachStep(Directory& original, Directory& copy, RunCopy& follower) {
    for (size_t i = 0; i < life_.size(); ++i) {
      Take(original, i, i + 1);
      ASSERT_EQ(Follow(original, follower), absl::OkStatus()) << life_[i].name;
      ASSERT_EQ(copy.Files(), original.Files()) << life_[i].name;
      ASSERT_EQ(copy.store().Position().digest(), original.store().Position().digest());
    }
  }

  const TemporaryFolder parent_;
  const std::vector<ScriptedStep> life_ = ScriptedLife();
  int messages_ = 0;  // Messages of the last Follow.
};

TEST_F(RunCopyTest, AFollowerThatIsAlwaysThereHasEveryCommit) {
  const auto [original, copy] = MakeBoth();
  RunCopy follower(copy->store(), "spare");
  ASSERT_NO_FATAL_FAILURE(FollowEachStep(*original, *copy, follower));
  ExpectSame(*original, *copy);
}

TEST_F(RunCopyTest, AFollowerComesAtAnyTimeAndIsAwayForAnyTime) {
  for (size_t first = 1; first <= life_.size(); first += 3) {
    for (size_t second = first; second <= life_.size(); second += 5) {
      SCOPED_TRACE(absl::StrCat("from ", first, " to ", second));
      const std::string name = absl::StrCat(first, "-", second);
      const auto [original, copy] = MakeBoth(name);
      Take(*original, 0, first);
      ASSERT_TRUE(Follow(*original, *copy).ok());
      Take(*original, first, second);
      // Neither knows by heart what was before.
      copy->Open();
      if (second % 2 == 0) original->Open();
      ASSERT_EQ(Follow(*original, *copy), absl::OkStatus());
      ExpectSame(*original, *copy);
    }
  }
}

TEST_F(RunCopyTest, AStreamThatIsCutAnywhereGoesOn) {
  for (const bool restarts : {false, true}) {
    for (int cut = 0;; ++cut) {
      SCOPED_TRACE(absl::StrCat("before message ", cut, restarts ? ", with a restart" : ""));
      const std::string name = absl::StrCat(cut, restarts ? "r" : "");
      const auto [original, copy] = MakeBoth(name);
      RunCopy follower(copy->store(), "spare");
      Take(*original, 0, life_.size());
      ASSERT_TRUE(Follow(*original, follower, cut).ok());
      const bool was_cut = messages_ > cut;
      if (restarts) {
        copy->Open();
        ASSERT_TRUE(Follow(*original, *copy).ok());
      } else {
        ASSERT_TRUE(Follow(*original, follower).ok());
      }
      ExpectSame(*original, *copy);
      if (!was_cut) break;
      if (HasFailure()) return;
    }
  }
}

TEST_F(RunCopyTest, WhoServesACopyThatWasCutFindsARunAndNothingElse) {
  const auto [original, copy] = MakeBoth();
  RunCopy follower(copy->store(), "spare");
  Take(*original, 0, 8);
  ASSERT_TRUE(Follow(*original, follower).ok());
  const int64_t commits = copy->store().Position().commits();
  Take(*original, 8, 12);
  ASSERT_TRUE(Follow(*original, follower, /*cut=*/1).ok());
  EXPECT_NE(copy->Files().size(), 0);
  copy->Close();
  Directory served(parent_.File("copy"), /*is_copy=*/false);
  EXPECT_EQ(served.store().Position().commits(), commits);
  EXPECT_FALSE(FileSystem::Real()->Exists(parent_.File("copy/COPY")));
  // A run that has lost commits is told from that again.
  ASSERT_TRUE(served.store().TakeOver().ok());
}

TEST_F(RunCopyTest, AFileThatIsWholeIsNotSentAgain) {
  const auto [original, copy] = MakeBoth();
  Take(*original, 0, 8);
  RunCopy follower(copy->store(), "spare");
  ASSERT_TRUE(Follow(*original, follower).ok());
  Take(*original, 8, 12);
  // The last message, which ends the step, does not arrive.
  int messages = 0;
  ASSERT_TRUE(SendWhatLacks(original->store(), follower.Ask(),
                            [&](const v1::FollowResponse& part) {
                              if (part.has_advance()) return false;
                              ++messages;
                              return follower.Take(part).ok();
                            })
                  .status()
                  .code() == kCancelled);
  EXPECT_GT(messages, 1);
  int files = 0;
  ASSERT_TRUE(SendWhatLacks(original->store(), follower.Ask(), [&](const v1::FollowResponse& part) {
                files += part.has_part() ? 1 : 0;
                return follower.Take(part).ok();
              }).ok());
  EXPECT_EQ(files, 0);
  ExpectSame(*original, *copy);
}

TEST_F(RunCopyTest, ARecordWithAnUnusualNumberStaysAsItIs) {
  const auto [original, copy] = MakeBoth();
  Take(*original, 0, 5);
  v1::Member record = ScriptedMember("alice", 2);
  record.mutable_heartbeat()->set_train_loss(std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(original->store().SaveMembers(std::array{record}).ok());
  ASSERT_EQ(Follow(*original, *copy), absl::OkStatus());
  ExpectSame(*original, *copy);
}

TEST_F(RunCopyTest, TheGivenParametersComeWithTheBeginningAndAStaleFileOfThemGoes) {
  FileSystem& disk = *FileSystem::Real();
  for (const bool given : {true, false}) {
    const auto [original, copy] = MakeBoth(absl::StrCat(given));
    const std::string copied = parent_.File(absl::StrCat("copy", given, "/initial.parameters"));
    Take(*original, 0, 3);
    if (given) {
      ASSERT_TRUE(WriteFileAtomically(disk, parent_.File("original1/initial.parameters"),
                                      absl::string_view("what it began with"))
                      .ok());
    }
    // An attempt to begin another run here left this.
    ASSERT_TRUE(WriteFileAtomically(disk, copied, absl::string_view("something else")).ok());
    ASSERT_TRUE(Follow(*original, *copy).ok());
    EXPECT_EQ(disk.ReadFile(copied).value_or(""), given ? "what it began with" : "");
    EXPECT_EQ(disk.Exists(copied), given);
    ExpectSame(*original, *copy);
  }
}

TEST_F(RunCopyTest, WhoTakesOverFromACopyHasALargerNumber) {
  const auto [original, copy] = MakeBoth();
  Take(*original, 0, 5);
  const auto epoch = original->store().TakeOver().value();
  Take(*original, 5, life_.size());
  ASSERT_TRUE(Follow(*original, *copy).ok());
  EXPECT_GT(*copy->store().TakeOver(), epoch);
}

// Checks what was refused, and that nothing changed.
TEST_F(RunCopyTest, AFolderOfAnotherRunIsRefused) {
  const auto [original, copy] = MakeBoth();
  Take(*original, 0, 5);
  v1::RunIdentity other = ScriptedIdentity();
  other.set_run_id("toy-78");
  ASSERT_TRUE(copy->store().BeginRun(other).ok());
  EXPECT_THAT(Follow(*original, *copy),
              StatusIs(kFailedPrecondition,
                       HasSubstr("this is the run toy-77, the folder that follows holds "
                                 "the run toy-78: move that folder away")));
  EXPECT_EQ(copy->store().Position().commits(), 1);
}

TEST_F(RunCopyTest, AnOriginalThatHasLessIsRefused) {
  const auto [original, copy] = MakeBoth();
  Take(*original, 0, 5);
  Take(*copy, 0, 6);
  EXPECT_THAT(Follow(*original, *copy),
              StatusIs(kOutOfRange, HasSubstr("it serves an older copy")));
}

TEST_F(RunCopyTest, TwoThatWereBothServedAreToldApart) {
  for (const size_t more : {0, 1, 4}) {
    const auto [original, copy] = MakeBoth(absl::StrCat(more));
    Take(*original, 0, 5);
    ASSERT_TRUE(Follow(*original, *copy).ok());
    ASSERT_TRUE(original->store().SaveMembers(std::array{ScriptedMember("carol", 1)}).ok());
    ASSERT_TRUE(copy->store().SaveMembers(std::array{ScriptedMember("dave", 1)}).ok());
    Take(*original, 5, 5 + more);
    const int64_t before = copy->store().Position().commits();
    const absl::Status followed = Follow(*original, *copy);
    EXPECT_FALSE(followed.ok());
    EXPECT_THAT(followed.message(), HasSubstr("move that folder away"));
    EXPECT_EQ(copy->store().Position().commits(), before);
  }
}

TEST_F(RunCopyTest, ARunThatHasNotBegunHasNothingToFollow) {
  const auto [original, copy] = MakeBoth();
  EXPECT_THAT(Follow(*original, *copy), StatusIs(kUnavailable));
}

class HostileMessageTest : public RunCopyTest {
 protected:
  // Returns what the copy says when one message of a step was changed.
  absl::Status FollowWith(const std::function<void(v1::FollowResponse&)>& change) {
    const auto [original, copy] = MakeBoth(absl::StrCat(++runs_));
    Take(*original, 0, 4);
    RunCopy follower(copy->store(), "spare");
    EXPECT_TRUE(Follow(*original, follower).ok());
    Take(*original, 4, life_.size());
    absl::Status taken;
    SendWhatLacks(original->store(), follower.Ask(), [&](const v1::FollowResponse& response) {
      v1::FollowResponse changed = response;
      change(changed);
      taken = follower.Take(changed).status();
      return taken.ok();
    }).IgnoreError();
    // Whatever came, the folder is a run's.
    copy->Open();
    return taken;
  }
  int runs_ = 0;
};

TEST_F(HostileMessageTest, NothingIsWrittenBesideBlobs) {
  for (const char* file : {"../escape", "deltas/../../escape", "run.db", "deltas/x", "LOCK", "",
                           "/tmp/x", "deltas/000000000001-f0-r1-a/b.delta", "initial.parameters"}) {
    const absl::Status taken = FollowWith([&](v1::FollowResponse& response) {
      if (response.has_part()) response.mutable_part()->set_file(file);
    });
    EXPECT_THAT(taken, StatusIs(kInvalidArgument)) << file;
  }
}

TEST_F(HostileMessageTest, WhatIsDamagedMisplacedOrNotOfTheCommitIsRefused) {
  using Message = v1::FollowResponse;
  const std::tuple<bool (Message::*)() const, std::function<void(Message&)>, absl::StatusCode>
      changes[] = {
          {&Message::has_part, [](auto& m) { m.mutable_part()->mutable_data()->back() ^= 1; },
           kUnavailable},
          {&Message::has_part, [](auto& m) { m.mutable_part()->set_offset(1); }, kInvalidArgument},
          {&Message::has_part, [](auto& m) { m.mutable_part()->set_file_bytes(3); },
           kInvalidArgument},
          {&Message::has_records,
           [](auto& m) { m.mutable_records()->mutable_records()->RemoveLast(); }, kDataLoss},
          {&Message::has_records,
           [](auto& m) { m.mutable_records()->mutable_records(0)->mutable_value()->pop_back(); },
           kInvalidArgument},
          {&Message::has_advance, [](auto& m) { m.mutable_advance()->set_digest(1); }, kDataLoss},
          {&Message::has_advance, [](auto& m) { m.mutable_advance()->set_from(1); },
           kFailedPrecondition}};
  for (const auto& [has, change, code] : changes) {
    const auto changed = [&has = has, &change = change](Message& message) {
      if ((message.*has)()) change(message);
    };
    EXPECT_THAT(FollowWith(changed), StatusIs(code)) << runs_;
  }
}

TEST_F(HostileMessageTest, ARowWhoseFileDidNotComeIsRefused) {
  EXPECT_THAT(FollowWith([](v1::FollowResponse& response) {
                if (response.has_part()) *response.mutable_records() = v1::CopyRecords();
              }),
              StatusIs(kDataLoss, HasSubstr("is missing")));
}

}  // namespace
}  // namespace causeway::server
