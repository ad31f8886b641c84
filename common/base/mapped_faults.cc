#include "common/base/file_system.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace causeway {
namespace {

constexpr absl::string_view kWhat =
    " became shorter while it was read, or its disk failed: put the whole file back (write it "
    "under another name, then rename it) and start again";

// Where the fault of this thread's ReadMapped goes on; null: it is in none.
thread_local sigjmp_buf* guard = nullptr;

void Say(absl::string_view text) {
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;  // Nobody is left to tell.
}

// The file of a line "BEGIN-END rwxp OFFSET DEVICE INODE   PATH" if the address is in it.
absl::string_view PathAt(absl::string_view line, uint64_t address) {
  uint64_t begin = 0;
  uint64_t end = 0;
  const char* const last = line.data() + line.size();
  const char* const dash = std::from_chars(line.data(), last, begin, 16).ptr;
  if (dash == last) return {};
  std::from_chars(dash + 1, last, end, 16);
  const size_t path = line.find('/');
  if (address < begin || address >= end || path == absl::string_view::npos) return {};
  return line.substr(path);
}

// Calls nothing that a signal handler may not: no memory is allocated, no lock taken.
void OnFault(int number, siginfo_t* info, void*) {
  if (guard != nullptr) siglongjmp(*guard, 1);
  const auto address = reinterpret_cast<uint64_t>(info->si_addr);
  const int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  std::array<char, 8192> line;
  size_t size = 0;
  while (maps >= 0) {
    const ssize_t got = read(maps, line.data() + size, line.size() - size);
    if (got <= 0) break;
    size += static_cast<size_t>(got);
    size_t begin = 0;
    for (size_t at = 0; at < size; ++at) {
      if (line[at] != '\n') continue;
      const absl::string_view path = PathAt({line.data() + begin, at - begin}, address);
      begin = at + 1;
      if (path.empty()) continue;
      Say("causeway: ");
      Say(path);
      Say(kWhat);
      Say("\n");
      _exit(1);
    }
    std::memmove(line.data(), line.data() + begin, size - begin);
    size -= begin;
  }
  // Nothing for no file: as if nobody had asked.
  signal(number, SIG_DFL);
  raise(number);
}

}  // namespace

void NameMappedFaults() {
  struct sigaction action = {};
  action.sa_sigaction = OnFault;
  // Not blocked meanwhile: ReadMapped's fault leaves the handler by a jump, which restores no mask.
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

absl::Status ReadMapped(const std::string& path, absl::FunctionRef<void()> read) {
  sigjmp_buf here;
  if (sigsetjmp(here, /*savemask=*/0) != 0) {
    guard = nullptr;
    return absl::DataLossError(absl::StrCat(path, kWhat));
  }
  guard = &here;
  read();
  guard = nullptr;
  return absl::OkStatus();
}

}  // namespace causeway
