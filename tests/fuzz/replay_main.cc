// Runs a fuzz target over stored inputs, in any build and with any compiler.
//
//   PROGRAM [--target=NAME] FILE|FOLDER...
//
// A finding ends the program: the last line names the input. Exit status 0 if there is none.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);

namespace causeway::fuzz {
namespace {

void Replay(const std::string& path) {
  std::fprintf(stderr, "%s\n", path.c_str());
  const absl::StatusOr<std::string> content = FileSystem::Real()->ReadFile(path);
  if (!content.ok()) Fail(__FILE__, __LINE__, content.status().ToString());
  // Takes exactly that size, so that a sanitizer sees every byte read beyond it.
  const std::vector<uint8_t> bytes(content->begin(), content->end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

int Main(int argc, char** argv) {
  LLVMFuzzerInitialize(&argc, &argv);
  int inputs = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--", 0) == 0) continue;
    if (std::filesystem::is_directory(argument)) {
      for (const auto& entry : std::filesystem::directory_iterator(argument)) {
        Replay(entry.path());
        ++inputs;
      }
    } else {
      Replay(argument);
      ++inputs;
    }
  }
  return inputs > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace causeway::fuzz

int main(int argc, char** argv) { return causeway::fuzz::Main(argc, argv); }
