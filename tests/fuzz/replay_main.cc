// Runs fuzz targets over stored inputs, in any build and with any compiler.
//
//   PROGRAM --corpus=FOLDER                 every target over the files of FOLDER/NAME-OF-TARGET;
//                                           a folder that is missing or empty is a failure
//   PROGRAM [--target=NAME] FILE...         one target over these files
//
// A finding ends the program: the last line names the input. Exit status 0 if there is none.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);

namespace causeway::fuzz {
namespace {

namespace fs = std::filesystem;

bool Replay(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  // Of exactly that size, so that a sanitizer sees every byte read beyond it.
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    return false;
  }
  bytes.shrink_to_fit();
  std::fprintf(stderr, "%s\n", path.c_str());
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  return true;
}

bool ReplayFolder(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) paths.push_back(entry.path());
  if (error || paths.empty()) {
    std::fprintf(stderr,
                 "%s has no inputs: make them with `tests/fuzz/run --seconds 60 %s` and commit "
                 "them\n",
                 folder.c_str(), folder.filename().c_str());
    return false;
  }
  std::sort(paths.begin(), paths.end());
  return std::all_of(paths.begin(), paths.end(), Replay);
}

bool ReplayAll(const fs::path& corpus) {
  bool fine = true;
  for (const std::string& name : TargetNames()) {
    fine = SelectTarget(name) && ReplayFolder(corpus / name) && fine;
  }
  return fine;
}

int Main(int argc, char** argv) {
  LLVMFuzzerInitialize(&argc, &argv);
  const std::string option = "--corpus=";
  bool fine = argc > 1;
  for (int i = 1; i < argc && fine; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind(option, 0) == 0) {
      fine = ReplayAll(argument.substr(option.size()));
    } else if (argument.rfind("--", 0) != 0) {
      fine = Replay(argument);
    }
  }
  return fine ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace causeway::fuzz

int main(int argc, char** argv) { return causeway::fuzz::Main(argc, argv); }
