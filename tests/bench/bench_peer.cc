#include "tests/bench/bench_peer.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <utility>

namespace causeway::bench {
namespace {

constexpr char kThisProgram[] = "/proc/self/exe";

}  // namespace

absl::StatusOr<BenchPeer> BenchPeer::Start(const std::vector<std::string>& arguments) {
  std::array<int, 2> to = {};
  std::array<int, 2> from = {};
  if (pipe2(to.data(), O_CLOEXEC) != 0 || pipe2(from.data(), O_CLOEXEC) != 0) {
    return absl::ErrnoToStatus(errno, "pipe");
  }
  std::vector<std::string> words = {kThisProgram};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
  pid_t process = -1;
  const int error =
      posix_spawn(&process, kThisProgram, &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(to[0]);
  close(from[1]);
  if (error != 0) return absl::ErrnoToStatus(error, "cannot start the other process");
  BenchPeer peer(process, to[1]);
  FILE* const said = fdopen(from[0], "r");
  const bool told = std::fscanf(said, "%d", &peer.port_) == 1;
  std::fclose(said);
  if (!told) return absl::InternalError("the other process has ended");
  return peer;
}

BenchPeer::BenchPeer(BenchPeer&& other) noexcept
    : process_(std::exchange(other.process_, -1)),
      to_(std::exchange(other.to_, -1)),
      port_(other.port_) {}

BenchPeer::~BenchPeer() {
  if (process_ < 0) return;
  close(to_);
  waitpid(process_, nullptr, 0);
}

double BenchPeer::CpuSeconds() const {
  clockid_t clock = 0;
  timespec time = {};
  if (clock_getcpuclockid(process_, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void ServeBenchPeer(int port) {
  std::printf("%d\n", port);
  std::fflush(stdout);
  char nothing = 0;
  while (read(STDIN_FILENO, &nothing, 1) > 0) {
  }
}

}  // namespace causeway::bench
