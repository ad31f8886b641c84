#include "tests/fuzz/target.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "google/protobuf/stubs/logging.h"

namespace causeway::fuzz {
namespace {

const std::vector<Target>& All() {
  static const std::vector<Target>* const all = new std::vector<Target>(Targets());
  return *all;
}

size_t selected = 0;

}  // namespace

void Fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: FINDING: %s\n", file, line, what.c_str());
  std::abort();
}

}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  causeway::fuzz::All()[causeway::fuzz::selected].check({data, size});
  return 0;
}

// Called once, before libFuzzer (or the replay) looks at the arguments. libFuzzer passes over what
// begins with two dashes.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  // Bad messages are what this is about; saying so each time would be most of the work.
  google::protobuf::SetLogHandler(nullptr);
  const std::vector<causeway::fuzz::Target>& all = causeway::fuzz::All();
  for (int i = 1; i < *argc; ++i) {
    const std::string argument = (*argv)[i];
    if (argument == "--list") {
      for (const causeway::fuzz::Target& target : all) std::puts(target.name.c_str());
      std::exit(0);
    }
    if (argument.rfind("--target=", 0) != 0) continue;
    const auto found = std::ranges::find(all, argument.substr(std::strlen("--target=")),
                                         &causeway::fuzz::Target::name);
    if (found == all.end()) {
      std::fprintf(stderr, "there is no such target: %s (--list names them)\n", argument.c_str());
      std::exit(2);
    }
    causeway::fuzz::selected = static_cast<size_t>(found - all.begin());
  }
  return 0;
}
