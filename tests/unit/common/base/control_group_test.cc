#include "common/base/control_group.h"

#include <thread>

#include "gtest/gtest.h"
#include "tests/unit/common/base/temporary_folder.h"

namespace causeway {
namespace {

class ControlGroupTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, absl::string_view text) {
    const std::string full = folder_.path() + path;
    ASSERT_TRUE(files_.CreateFolders(ParentFolder(full)).ok());
    ASSERT_TRUE(WriteFileAtomically(files_, full, text).ok());
  }
  ControlGroupLimits Read() { return ReadControlGroupLimits(files_, folder_.path()); }

  const TemporaryFolder folder_;
  FileSystem& files_ = *FileSystem::Real();
};

TEST_F(ControlGroupTest, WithoutGroupsThereIsNoLimit) {
  EXPECT_FALSE(Read().memory_left.has_value());
  EXPECT_EQ(Read().cores, 0);
}

// systemd's MemoryMax= and CPUQuota= of a service, or of a slice above it.
TEST_F(ControlGroupTest, TheLeastOfTheOwnGroupAndOfThoseAboveCounts) {
  Write("/proc/self/cgroup", "0::/user.slice/app.slice/train.service\n");
  Write("/proc/self/mountinfo",
        "22 1 0:21 / /proc rw - proc proc rw\n"
        "25 22 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
  const std::string slice = "/sys/fs/cgroup/user.slice";
  const std::string service = slice + "/app.slice/train.service";
  Write(service + "/memory.max", "max\n");
  Write(service + "/memory.high", "max\n");
  Write(service + "/memory.current", "3000\n");
  Write(service + "/cpu.max", "max 100000\n");
  EXPECT_FALSE(Read().memory_left.has_value());
  EXPECT_EQ(Read().cores, 0);
  Write(service + "/memory.max", "10000\n");
  EXPECT_EQ(Read().memory_left, 7000);
  Write(service + "/memory.high", "8000\n");
  EXPECT_EQ(Read().memory_left, 5000);
  // Cache that can be dropped is not in use.
  Write(service + "/memory.stat", "anon 1800\nfile 1200\ninactive_file 1100\n");
  EXPECT_EQ(Read().memory_left, 6100);
  Write(slice + "/memory.max", "20000\n");
  Write(slice + "/memory.current", "18000\n");
  EXPECT_EQ(Read().memory_left, 2000);
  Write(slice + "/memory.current", "21000\n");
  EXPECT_EQ(Read().memory_left, 0);
  Write(slice + "/app.slice/cpu.max", "250000 100000\n");
  EXPECT_DOUBLE_EQ(Read().cores, 2.5);
  Write(service + "/cpu.max", "50000 100000\n");
  EXPECT_DOUBLE_EQ(Read().cores, 0.5);
  EXPECT_EQ(UsableCores(Read()), 1);
}

// Slurm's --mem, with version 1: the limit is the job's, two groups above the task's.
TEST_F(ControlGroupTest, AJobsLimitsOfVersion1) {
  Write("/proc/self/cgroup",
        "12:cpuset:/slurm/uid_7/job_9/step_0\n"
        "7:memory:/slurm/uid_7/job_9/step_0/task_0\n"
        "4:cpu,cpuacct:/slurm/uid_7/job_9\n"
        "1:name=systemd:/\n"
        "0::/\n");
  Write("/proc/self/mountinfo",
        "30 25 0:26 / /cg/memory rw - cgroup cgroup rw,memory\n"
        "31 25 0:27 / /cg/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n");
  const std::string job = "/cg/memory/slurm/uid_7/job_9";
  const std::string none = "9223372036854771712\n";
  Write("/cg/memory/memory.limit_in_bytes", none);
  Write("/cg/memory/memory.usage_in_bytes", "123456\n");
  Write(job + "/step_0/task_0/memory.limit_in_bytes", none);
  Write(job + "/step_0/task_0/memory.usage_in_bytes", "100\n");
  Write(job + "/memory.limit_in_bytes", "50000\n");
  Write(job + "/memory.usage_in_bytes", "2000\n");
  Write(job + "/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n");
  Write("/cg/cpu,cpuacct/slurm/uid_7/job_9/cpu.cfs_quota_us", "-1\n");
  Write("/cg/cpu,cpuacct/slurm/uid_7/job_9/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Read().memory_left, 48500);
  EXPECT_EQ(Read().cores, 0);
  Write("/cg/cpu,cpuacct/slurm/uid_7/cpu.cfs_quota_us", "300000\n");
  Write("/cg/cpu,cpuacct/slurm/uid_7/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(Read().cores, 3);
}

// Docker without a namespace of groups: the container's own group is mounted as the root.
TEST_F(ControlGroupTest, AContainerSeesItsGroupInThePlaceOfTheRoot) {
  Write("/proc/self/cgroup", "7:memory:/docker/abc/inner\n0::/../../elsewhere\n");
  Write("/proc/self/mountinfo",
        "30 25 0:26 /docker/abc /sys/fs/cgroup/memory ro master:9 - cgroup cgroup rw,memory\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9000\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(Read().memory_left, 8000);
  Write("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "5000\n");
  Write("/sys/fs/cgroup/memory/inner/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(Read().memory_left, 4000);
  Write("/sys/fs/cgroup/memory.max", "700\n");
  Write("/sys/fs/cgroup/memory.current", "100\n");
  EXPECT_EQ(Read().memory_left, 600);
}

TEST(UsableCoresTest, AQuotaIsRoundedUpAndTakesNoMoreThanThereAre) {
  const int all = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_EQ(UsableCores({}), all);
  EXPECT_EQ(UsableCores({.cores = 0.2}), 1);
  EXPECT_EQ(UsableCores({.cores = all - 0.5}), all);
  EXPECT_EQ(UsableCores({.cores = all + 3.0}), all);
}

}  // namespace
}  // namespace causeway
