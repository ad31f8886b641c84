#include "common/rpc/tcp_links.h"

#include "common/base/file_system.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/temporary_folder.h"

namespace causeway {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr SocketBuffers kDefaults = {.send = {4096, 16384, 4 * kMiB},
                                     .receive = {4096, 131072, 32 * kMiB}};

MeasuredDirection Link(double mbit_per_second, int rtt_ms, int connections) {
  return {.bytes_per_second = mbit_per_second * 125e3,
          .rtt = absl::Milliseconds(rtt_ms),
          .connections = connections};
}

TEST(SocketBuffers, AreReadFromTheFolderOfTheKernel) {
  const TemporaryFolder folder;
  FileSystem& files = *FileSystem::Real();
  EXPECT_TRUE(absl::IsNotFound(ReadSocketBuffers(files, folder.path()).status()));
  const std::string wmem = JoinPath(folder.path(), "tcp_wmem");
  ASSERT_TRUE(WriteFileAtomically(files, wmem, "4096\t16384\t4194304\n").ok());
  ASSERT_TRUE(WriteFileAtomically(files, JoinPath(folder.path(), "tcp_rmem"),
                                  absl::string_view("1\t2\t3\n"))
                  .ok());
  const absl::StatusOr<SocketBuffers> buffers = ReadSocketBuffers(files, folder.path());
  ASSERT_TRUE(buffers.ok()) << buffers.status();
  EXPECT_EQ(buffers->send.initial, 16384);
  EXPECT_EQ(buffers->send.largest, 4194304);
  EXPECT_EQ(buffers->receive.largest, 3);
  ASSERT_TRUE(WriteFileAtomically(files, wmem, absl::string_view("4096 16384\n")).ok());
  EXPECT_THAT(ReadSocketBuffers(files, folder.path()).status().message(),
              HasSubstr("expected three numbers"));
}

TEST(SocketBuffers, TheWindowIsSmallerThanWhatStaysInTheSendBuffer) {
  const SocketBuffers usual = {.send = {.largest = 4 * kMiB}, .receive = {.largest = 32 * kMiB}};
  EXPECT_EQ(usual.window_bytes(), 9 * kMiB / 4);
  EXPECT_LT(3 * usual.window_bytes(), 2 * usual.send.largest);
}

TEST(SocketBuffers, OneDefaultConnectionHoldsAGigabitLinkOf100MsDown) {
  // Two million bytes per round trip: 168 Mbit/s.
  const BufferVerdict verdict = JudgeBuffer(4 * kMiB, Link(160, 100, 1));
  EXPECT_TRUE(verdict.binds);
  EXPECT_EQ(verdict.window_bytes, 2 * kMiB);
  EXPECT_EQ(verdict.bandwidth_delay_bytes, 2e6);
  EXPECT_EQ(verdict.wanted_bytes, 8 * kMiB);
}

TEST(SocketBuffers, WhatBindsIsTheWindowOfAllConnectionsTogether) {
  EXPECT_FALSE(JudgeBuffer(4 * kMiB, Link(160, 100, 4)).binds);
  EXPECT_TRUE(JudgeBuffer(4 * kMiB, Link(640, 100, 4)).binds);
  EXPECT_FALSE(JudgeBuffer(4 * kMiB, Link(640, 100, 16)).binds);
}

TEST(SocketBuffers, AShortLinkIsNeverBoundAndWhatWasNotMeasuredNeither) {
  EXPECT_FALSE(JudgeBuffer(4 * kMiB, {2e9, absl::Microseconds(80), 1}).binds);
  EXPECT_FALSE(JudgeBuffer(4 * kMiB, {0, absl::Milliseconds(100), 1}).binds);
  EXPECT_FALSE(JudgeBuffer(4 * kMiB, {1e9, absl::ZeroDuration(), 1}).binds);
}

TEST(SocketBuffers, TheAdviceIsBoundedHoweverLongTheLink) {
  EXPECT_LE(JudgeBuffer(600 * kMiB, Link(100'000, 600, 1)).wanted_bytes, 1024 * kMiB);
}

TEST(SocketBuffers, TheWarningNamesTheDirectionAndTheLineToRun) {
  EXPECT_EQ(SocketBufferWarning(kDefaults, Link(50, 100, 4), Link(50, 100, 4)), "");
  EXPECT_THAT(SocketBufferWarning(kDefaults, Link(160, 100, 1), Link(160, 100, 1)),
              AllOf(HasSubstr("sending runs at 160 of the at most 168 Mbit/s"),
                    HasSubstr("sysctl -w net.ipv4.tcp_wmem='4096 16384 8388608'"),
                    Not(HasSubstr("receiving"))));
  EXPECT_THAT(SocketBufferWarning(kDefaults, Link(160, 100, 1), Link(1300, 100, 1)),
              AllOf(HasSubstr("sending"), HasSubstr("; receiving"),
                    HasSubstr("net.ipv4.tcp_rmem='4096 131072 67108864'")));
}

}  // namespace
}  // namespace causeway
