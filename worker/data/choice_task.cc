#include "worker/data/choice_task.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway::worker {
namespace {

constexpr int32_t kMagic = 20240522;
constexpr int32_t kNarrow = 1;
constexpr int32_t kWide = 2;
constexpr size_t kHeaderWords = 256;
constexpr size_t kHeaderBytes = kHeaderWords * sizeof(int32_t);
constexpr uint32_t kMaxCompletions = 1024;

// The stream, one word after the other, never beyond its end.
class Words {
 public:
  Words(std::span<const uint8_t> bytes, size_t word_bytes)
      : bytes_(bytes), word_bytes_(word_bytes) {}

  size_t word_bytes() const { return word_bytes_; }
  size_t left() const { return bytes_.size() / word_bytes_; }
  bool Next(uint32_t& word) {
    if (left() == 0) return false;
    word = 0;
    std::memcpy(&word, bytes_.data(), word_bytes_);
    bytes_ = bytes_.subspan(word_bytes_);
    return true;
  }

 private:
  std::span<const uint8_t> bytes_;
  const size_t word_bytes_;
};

// N and N tokens. Empty text: fine; otherwise what is wrong.
std::string ReadTokens(Words& words, int64_t vocabulary_size, std::vector<int32_t>& tokens) {
  uint32_t count = 0;
  if (!words.Next(count) || count > words.left()) return "it is cut short";
  if (count == 0) return "a context or completion has no tokens";
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t token = 0;
    words.Next(token);
    if (int64_t{token} >= vocabulary_size) {
      return absl::StrCat("its token ", token, " is outside the vocabulary of ", vocabulary_size);
    }
    tokens.push_back(static_cast<int32_t>(token));
  }
  return "";
}

std::string ReadExample(Words& words, int64_t vocabulary_size, ChoiceExample& example) {
  const size_t begin = words.left();
  const uint32_t start = words.word_bytes() == 2 ? 0xffffU : 0xffffffffU;
  uint32_t first = 0, bytes = 0, index = 0, label = 0, completions = 0;
  if (!words.Next(first) || !words.Next(bytes) || !words.Next(index) || !words.Next(label) ||
      !words.Next(completions)) {
    return "it is cut short";
  }
  if (first != start) return absl::StrCat("it begins with ", first, ", not with ", start);
  if (completions < 2 || completions > kMaxCompletions || label >= completions) {
    return absl::StrCat("its label is ", label, " of ", completions, " completions");
  }
  example.label = static_cast<int>(label);
  std::string wrong = ReadTokens(words, vocabulary_size, example.context);
  for (uint32_t i = 0; i < completions && wrong.empty(); ++i) {
    wrong = ReadTokens(words, vocabulary_size, example.completions.emplace_back());
  }
  const size_t found = (begin - words.left()) * words.word_bytes();
  if (wrong.empty() && found != bytes) {
    wrong = absl::StrCat("it has ", found, " bytes, and says ", bytes);
  }
  return wrong;
}

// The words of an example; what they do not fit into is for the caller to see.
std::vector<uint64_t> ExampleWords(const ChoiceExample& example, size_t index, size_t word_bytes) {
  std::vector<uint64_t> words = {word_bytes == 2 ? 0xffffU : 0xffffffffU, 0, index,
                                 static_cast<uint64_t>(example.label), example.completions.size()};
  const auto append = [&](const std::vector<int32_t>& tokens) {
    words.push_back(tokens.size());
    for (const int32_t token : tokens) words.push_back(static_cast<uint64_t>(token));
  };
  append(example.context);
  for (const std::vector<int32_t>& completion : example.completions) append(completion);
  words[1] = words.size() * word_bytes;
  return words;
}

absl::Status CheckExample(const ChoiceExample& example, size_t index) {
  const bool tokens_fit = std::ranges::all_of(example.completions, [](const auto& completion) {
    return !completion.empty() && std::ranges::all_of(completion, [](int32_t t) { return t >= 0; });
  });
  if (tokens_fit && !example.context.empty() &&
      std::ranges::all_of(example.context, [](int32_t t) { return t >= 0; }) &&
      example.completions.size() >= 2 && example.completions.size() <= kMaxCompletions &&
      example.label >= 0 && example.label < std::ssize(example.completions)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("example ", index, " must have a context and 2 to ", kMaxCompletions,
                   " completions, none without tokens, and a label below their number"));
}

}  // namespace

absl::StatusOr<std::vector<ChoiceExample>> ReadChoiceTask(FileSystem& file_system,
                                                          const std::string& path,
                                                          int64_t vocabulary_size) {
  ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, file_system.Map(path));
  const std::span<const uint8_t> bytes = file->bytes();
  const auto bad = [&](auto... what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", what...));
  };
  std::array<int32_t, 4> header = {};
  if (bytes.size() < kHeaderBytes) return bad("it has only ", bytes.size(), " bytes");
  std::memcpy(header.data(), bytes.data(), sizeof(header));
  if (header[0] != kMagic || (header[1] != kNarrow && header[1] != kWide)) {
    return bad("it begins with ", header[0], " and version ", header[1], "; a task begins with ",
               kMagic, " and version 1 or 2");
  }
  Words words(bytes.subspan(kHeaderBytes), header[1] == kNarrow ? 2 : 4);
  // An example has at least 11 words: no count can ask for more than the file has.
  if (header[2] < 1 || static_cast<size_t>(header[2]) > words.left() / 11) {
    return bad("it announces ", header[2], " examples; its ", bytes.size(),
               " bytes hold at least one and at most ", words.left() / 11);
  }
  std::vector<ChoiceExample> examples(static_cast<size_t>(header[2]));
  for (size_t i = 0; i < examples.size(); ++i) {
    const std::string wrong = ReadExample(words, vocabulary_size, examples[i]);
    if (!wrong.empty()) return bad("example ", i, ": ", wrong);
  }
  if ((bytes.size() - kHeaderBytes) % words.word_bytes() != 0 || words.left() > 0) {
    return bad("it goes on after its ", header[2], " examples");
  }
  return examples;
}

absl::Status WriteChoiceTask(FileSystem& file_system, const std::string& path,
                             const std::vector<ChoiceExample>& examples) {
  if (examples.empty() ||
      examples.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat("a task has 1 to 2^31 - 1 examples, not ", examples.size()));
  }
  bool narrow = true;
  for (size_t i = 0; i < examples.size(); ++i) {
    RETURN_IF_ERROR(CheckExample(examples[i], i));
    const std::vector<uint64_t> words = ExampleWords(examples[i], i, 2);
    narrow = narrow && std::ranges::all_of(words.begin() + 1, words.end(),
                                           [](uint64_t word) { return word < 0xffff; });
  }
  const size_t word_bytes = narrow ? 2 : 4;
  std::vector<uint8_t> content(kHeaderBytes);
  uint64_t longest = 0;
  for (size_t i = 0; i < examples.size(); ++i) {
    const std::vector<uint64_t> words = ExampleWords(examples[i], i, word_bytes);
    if (words[1] > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) {
      return absl::InvalidArgumentError(
          absl::StrCat("example ", i, " has ", words[1], " bytes; at most 2^31 - 1 fit"));
    }
    longest = std::max(longest, words[1]);
    for (const uint64_t word : words) {
      const auto* const first = reinterpret_cast<const uint8_t*>(&word);
      content.insert(content.end(), first, first + word_bytes);
    }
  }
  const std::array<int32_t, 4> header = {kMagic, narrow ? kNarrow : kWide,
                                         static_cast<int32_t>(examples.size()),
                                         static_cast<int32_t>(longest)};
  std::memcpy(content.data(), header.data(), sizeof(header));
  return WriteFileAtomically(file_system, path, content);
}

}  // namespace causeway::worker
