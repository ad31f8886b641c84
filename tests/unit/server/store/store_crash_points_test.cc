// Processes that kill themselves at each of the store's crash points, on a real disk.
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "common/base/crash_point.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/temporary_folder.h"
#include "tests/unit/server/store/fault_disk_vfs.h"
#include "tests/unit/server/store/scripted_run.h"

namespace causeway::server {
namespace {

struct Death {
  size_t acknowledged = 0;
  bool killed = false;
};

Death LiveAndDie(const std::string& folder, const std::string& crash_at) {
  const std::string command = absl::StrCat(kCrashVariable, "=", crash_at, " exec ",
                                           CAUSEWAY_LIVE_SCRIPTED_RUN, " ", folder);
  FILE* const output = popen(command.c_str(), "r");
  EXPECT_NE(output, nullptr);
  Death death;
  while (fgetc(output) != EOF) ++death.acknowledged;
  const int status = pclose(output);
  death.killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  EXPECT_TRUE(death.killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << status;
  return death;
}

std::string Print(FileSystem& file_system, const std::string& folder, const std::string& vfs) {
  const auto store =
      RunDirectoryStore::Open(file_system, folder, {.durable = false, .sqlite_vfs = vfs});
  if (!store.ok()) return store.status().ToString();
  const auto run = (*store)->Recover();
  if (!run.ok()) return run.status().ToString();
  const auto print = Fingerprint(**store, *run);
  return print.ok() ? *print : print.status().ToString();
}

// After every number of steps.
std::vector<std::string> UndisturbedPrints() {
  FaultDisk disk;
  const FaultDiskVfs vfs(disk);
  const auto store =
      RunDirectoryStore::Open(disk, "/run", {.durable = false, .sqlite_vfs = vfs.name()});
  EXPECT_TRUE((*store)->Recover().ok());
  std::vector<std::string> prints;
  const auto print = [&] {
    const auto clone = disk.Clone();
    const FaultDiskVfs clone_vfs(*clone);
    prints.push_back(Print(*clone, "/run", clone_vfs.name()));
  };
  print();
  for (const ScriptedStep& step : ScriptedLife()) {
    EXPECT_TRUE(step.take(**store).ok());
    print();
  }
  return prints;
}

TEST(StoreCrashPointsTest, WhatWasAcknowledgedBeforeTheDeathIsThere) {
  const std::vector<std::string> prints = UndisturbedPrints();
  for (const absl::string_view point : kCrashPoints) {
    int deaths = 0;
    for (const int pass : {1, 2, 5, 9, 14, 20}) {
      const std::string crash_at = absl::StrCat(point, ":", pass);
      const TemporaryFolder parent;
      const std::string folder = parent.File("run");
      const Death death = LiveAndDie(folder, crash_at);
      if (!death.killed) break;
      ++deaths;
      const std::string found = Print(*FileSystem::Real(), folder, "");
      ASSERT_LT(death.acknowledged + 1, prints.size());
      EXPECT_TRUE(found == prints[death.acknowledged] || found == prints[death.acknowledged + 1])
          << crash_at << " after " << death.acknowledged << " steps:\n"
          << found;
    }
    // A life has no recovery; that point's turn is the next test.
    EXPECT_EQ(deaths > 0, point != "during_recovery") << point;
  }
}

TEST(StoreCrashPointsTest, ARecoveryThatDiesIsRepeated) {
  const TemporaryFolder parent;
  const std::string folder = parent.File("run");
  ASSERT_TRUE(LiveAndDie(folder, "before_row_commit:7").killed);
  EXPECT_TRUE(LiveAndDie(folder, "during_recovery").killed);
  const std::string found = Print(*FileSystem::Real(), folder, "");
  EXPECT_EQ(found, UndisturbedPrints()[6]);
}

}  // namespace
}  // namespace causeway::server
