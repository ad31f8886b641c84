#include "tests/fuzz/target.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "google/protobuf/stubs/logging.h"

namespace causeway::fuzz {
namespace {

size_t selected = 0;

}  // namespace

size_t SelectedTarget() { return selected; }

bool SelectTarget(const std::string& name) {
  const std::vector<std::string> names = TargetNames();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return false;
  selected = static_cast<size_t>(found - names.begin());
  return true;
}

void Fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: FINDING: %s\n", file, line, what.c_str());
  std::abort();
}

}  // namespace causeway::fuzz

// Called once, before libFuzzer (or the replay) looks at the arguments. libFuzzer passes over what
// begins with two dashes.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  // Bad messages are what this is about; saying so each time would be most of the work.
  google::protobuf::SetLogHandler(nullptr);
  constexpr char kTarget[] = "--target=";
  for (int i = 1; i < *argc; ++i) {
    const std::string argument = (*argv)[i];
    if (argument == "--list") {
      for (const std::string& name : causeway::fuzz::TargetNames()) std::puts(name.c_str());
      std::exit(0);
    }
    if (argument.rfind(kTarget, 0) != 0) continue;
    if (!causeway::fuzz::SelectTarget(argument.substr(std::strlen(kTarget)))) {
      std::fprintf(stderr, "there is no such target: %s (--list names them)\n", argument.c_str());
      std::exit(2);
    }
  }
  return 0;
}
