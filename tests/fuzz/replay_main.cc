// Runs fuzz targets over stored inputs, in any build and with any compiler.
//
//   PROGRAM --corpus=FOLDER                 every target over the inputs in FOLDER/TARGET.tar;
//                                           an archive that is missing or empty is a failure
//   PROGRAM [--target=NAME] FILE...         one target over these files
//
// A finding ends the program: the last line names the input. Exit status 0 if there is none.
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);

namespace causeway::fuzz {
namespace {

struct StoredInput {
  absl::string_view name;
  absl::string_view bytes;
};

// A header's number; the largest one if there is none.
uint64_t ReadOctal(absl::string_view field) {
  uint64_t value = 0;
  const auto result = std::from_chars(field.data(), field.data() + field.size(), value, 8);
  return result.ec == std::errc() ? value : UINT64_MAX;
}

// The sum of a header's bytes, with blanks where the sum itself stands.
uint64_t SumOf(absl::string_view header) {
  uint64_t sum = 0;
  for (size_t i = 0; i < header.size(); ++i) {
    sum += i >= 148 && i < 156 ? uint8_t{' '} : static_cast<uint8_t>(header[i]);
  }
  return sum;
}

// The files of a plain ustar archive (POSIX.1-1988), which hold views of it. DATA_LOSS unless it is
// whole and has files alone.
absl::StatusOr<std::vector<StoredInput>> ReadArchive(absl::string_view archive) {
  constexpr size_t kBlock = 512;
  std::vector<StoredInput> inputs;
  absl::string_view rest = archive;
  while (rest.size() >= kBlock) {
    const absl::string_view header = rest.substr(0, kBlock);
    if (header.find_first_not_of('\0') == absl::string_view::npos) return inputs;  // The end.
    if (header.substr(257, 6) != absl::string_view("ustar", 6) || header[156] != '0' ||
        ReadOctal(header.substr(148, 8)) != SumOf(header)) {
      return absl::DataLossError(absl::StrCat("byte ", archive.size() - rest.size(),
                                              " should begin a file of plain ustar, and does not"));
    }
    rest.remove_prefix(kBlock);
    const uint64_t size = ReadOctal(header.substr(124, 12));
    if (size > rest.size()) break;
    inputs.push_back(
        {header.substr(0, std::min(header.find('\0'), size_t{100})), rest.substr(0, size)});
    rest.remove_prefix(std::min((size + kBlock - 1) / kBlock * kBlock, rest.size()));
  }
  return absl::DataLossError(
      absl::StrCat("it is cut short: its ", archive.size(), " bytes have no end mark"));
}

void Replay(absl::string_view path, absl::string_view content) {
  // Takes exactly that size, so that a sanitizer sees every byte read beyond it.
  const std::vector<uint8_t> bytes(content.begin(), content.end());
  std::fprintf(stderr, "%s\n", std::string(path).c_str());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

absl::Status ReplayFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string content, FileSystem::Real()->ReadFile(path));
  Replay(path, content);
  return absl::OkStatus();
}

absl::Status ReplayArchive(const std::string& corpus, const std::string& target) {
  const std::string path = JoinPath(corpus, target + ".tar");
  const absl::StatusOr<std::string> archive = FileSystem::Real()->ReadFile(path);
  if (!archive.ok() && !absl::IsNotFound(archive.status())) return archive.status();
  std::vector<StoredInput> inputs;
  if (archive.ok()) {
    absl::StatusOr<std::vector<StoredInput>> read = ReadArchive(*archive);
    if (!read.ok()) {
      return absl::DataLossError(absl::StrCat(path, ": ", read.status().message(),
                                              "; restore it, or store its inputs again with "
                                              "tests/fuzz/add"));
    }
    inputs = *std::move(read);
  }
  if (inputs.empty()) {
    return absl::NotFoundError(
        absl::StrCat(path, " has no inputs: make them with `tests/fuzz/run --seconds 60 ", target,
                     "` and commit it"));
  }
  for (const StoredInput& input : inputs) Replay(absl::StrCat(path, ": ", input.name), input.bytes);
  return absl::OkStatus();
}

bool Fine(const absl::Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok();
}

bool ReplayCorpus(const std::string& corpus) {
  bool fine = true;
  for (const std::string& target : TargetNames()) {
    fine = SelectTarget(target) && Fine(ReplayArchive(corpus, target)) && fine;
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
      fine = ReplayCorpus(argument.substr(option.size()));
    } else if (argument.rfind("--", 0) != 0) {
      fine = Fine(ReplayFile(argument));
    }
  }
  return fine ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace causeway::fuzz

int main(int argc, char** argv) { return causeway::fuzz::Main(argc, argv); }
