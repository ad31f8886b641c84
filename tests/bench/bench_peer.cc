#include "tests/bench/bench_peer.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/base/status_macros.h"
#include "tests/bench/measure.h"

namespace causeway::bench {
namespace {

constexpr char kThisProgram[] = "/proc/self/exe";
constexpr char kQuestion = '?';

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
  BenchPeer peer(process, to[1], from[0]);
  ASSIGN_OR_RETURN(const double port, peer.Read());
  peer.port_ = static_cast<int>(port);
  return peer;
}

BenchPeer::BenchPeer(BenchPeer&& other) noexcept
    : process_(std::exchange(other.process_, -1)),
      to_(std::exchange(other.to_, -1)),
      from_(std::exchange(other.from_, -1)),
      port_(other.port_) {}

BenchPeer::~BenchPeer() {
  if (process_ < 0) return;
  close(to_);
  close(from_);
  waitpid(process_, nullptr, 0);
}

absl::StatusOr<double> BenchPeer::Read() {
  std::string line;
  for (char c = 0; c != '\n'; line += c) {
    if (read(from_, &c, 1) != 1) return absl::InternalError("the other process has ended");
  }
  double value = 0;
  if (!absl::SimpleAtod(line, &value)) return absl::InternalError("the other process said " + line);
  return value;
}

double BenchPeer::CpuSeconds() {
  if (write(to_, &kQuestion, 1) != 1) return 0;
  return Read().value_or(0);
}

void ServeBenchPeer(int port) {
  std::printf("%d\n", port);
  std::fflush(stdout);
  char question = 0;
  while (read(STDIN_FILENO, &question, 1) == 1) {
    std::printf("%.6f\n", ProcessCpuSeconds());
    std::fflush(stdout);
  }
}

}  // namespace causeway::bench
