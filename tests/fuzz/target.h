// The parts of every fuzz target. A program holds one target or, where one function tests many
// things of a kind (every codec), several. libFuzzer drives it in the preset `fuzz`; in all other
// builds replay_main.cc runs it over the stored inputs. tests/fuzz/run does both.
//
// Command line, beside libFuzzer's own: --list prints the names of the targets, one per line;
// --target=NAME chooses one (else it is the first).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace causeway::fuzz {

// Has an archive of inputs of that name in tests/fuzz/corpus.
struct Target {
  std::string name;
  std::function<void(std::span<const uint8_t>)> check;
};
// Written by every program (see FUZZ_TARGET).
std::vector<Target> Targets();

// A finding: says what does not hold, and aborts.
[[noreturn]] void Fail(const char* file, int line, const std::string& what);

}  // namespace causeway::fuzz

#define FUZZ_REQUIRE(condition, what)                                   \
  do {                                                                  \
    if (!(condition)) ::causeway::fuzz::Fail(__FILE__, __LINE__, what); \
  } while (false)

// The end of a program with one target, at global scope. `check` takes a std::span of bytes, or an
// Input.
#define FUZZ_TARGET(name, check)                                                                  \
  std::vector<causeway::fuzz::Target> causeway::fuzz::Targets() {                                 \
    return {{name, [](std::span<const uint8_t> bytes) { check({bytes.data(), bytes.size()}); }}}; \
  }
