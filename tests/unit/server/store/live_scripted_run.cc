// live_scripted_run FOLDER: lives the scripted run in a process of its own, which crash points may
// kill. Writes one byte to standard output for each step that was acknowledged.
#include <unistd.h>

#include "tests/unit/server/store/scripted_run.h"

namespace causeway::server {
namespace {

absl::Status Live(const std::string& folder) {
  auto store = RunDirectoryStore::Open(*FileSystem::Real(), folder, {.durable = false});
  if (!store.ok()) return store.status();
  const absl::Status recovered = (*store)->Recover().status();
  if (!recovered.ok()) return recovered;
  for (const ScriptedStep& step : ScriptedLife()) {
    const absl::Status status = step.take(**store);
    if (!status.ok()) return status;
    if (write(STDOUT_FILENO, "+", 1) != 1) return absl::InternalError("nobody listens");
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace causeway::server

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: live_scripted_run FOLDER\n", stderr);
    return 2;
  }
  const absl::Status status = causeway::server::Live(argv[1]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
