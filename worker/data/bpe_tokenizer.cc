#include "worker/data/bpe_tokenizer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "worker/data/characters.h"

namespace causeway::worker {
namespace {

// In the order of preference: what stands between the documents that such models were trained on.
constexpr const char* kEndsOfText[] = {"<|endoftext|>", "<|end_of_text|>", "</s>",
                                       "<eos>",         "<|eot_id|>",      "<|im_end|>"};

// Merging counts in int32.
constexpr size_t kMaxTextBytes = (size_t{1} << 31) - 2;

std::vector<AddedToken> Select(const std::vector<AddedToken>& tokens, bool normalized,
                               bool compose) {
  std::vector<AddedToken> selected;
  for (const AddedToken& token : tokens) {
    if (token.normalized != normalized) continue;
    selected.push_back(token);
    std::string storage;
    if (normalized && compose) selected.back().text = std::string(Composed(token.text, storage));
  }
  return selected;
}

}  // namespace

// A word's tokens by its bytes: natural text is made of few words. Each word has one place, and the
// latest stays; so a text of any kind costs no memory.
struct BpeTokenizer::Scratch {
  static constexpr size_t kPlaces = size_t{1} << 15;
  static constexpr size_t kMaxWordBytes = 31;
  static constexpr size_t kMaxWordTokens = 7;
  struct alignas(64) Place {
    char word[kMaxWordBytes];
    uint8_t bytes;  // 0: no word.
    int32_t tokens[kMaxWordTokens];
    uint8_t count;
  };

  Scratch() : places(kPlaces) {}

  static size_t PlaceOf(absl::string_view word) {
    uint64_t first = 0;
    uint64_t last = 0;
    if (word.size() >= 8) {
      std::memcpy(&first, word.data(), 8);
      std::memcpy(&last, word.data() + word.size() - 8, 8);
      for (size_t i = 8; i + 8 < word.size(); i += 8) {
        uint64_t middle;
        std::memcpy(&middle, word.data() + i, 8);
        first = (first ^ middle) * 0x9E3779B97F4A7C15u;
        first ^= first >> 32;
      }
    } else {
      for (const char byte : word) first = first << 8 | static_cast<uint8_t>(byte);
    }
    uint64_t hash = (first ^ (last + word.size())) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
    hash *= 0xBF58476D1CE4E5B9u;
    return hash >> (64 - 15);
  }

  std::vector<Place> places;
  std::vector<AddedTokenFinder::Part> parts;
  std::vector<AddedTokenFinder::Part> normalized_parts;
  std::string composed;
  std::string prefixed;
  MergeScratch merges;
};

BpeTokenizer::BpeTokenizer(ByteLevelBpe bpe, std::string name, std::string hash)
    : name_(std::move(name)),
      hash_(std::move(hash)),
      texts_(std::move(bpe.texts)),
      merges_(bpe.byte_tokens, bpe.merges),
      pattern_(bpe.pattern),
      word_end_(WordEndOf(bpe.pattern)),
      add_prefix_space_(bpe.add_prefix_space),
      compose_(bpe.compose),
      byte_tokens_(bpe.byte_tokens),
      added_as_written_(Select(bpe.added_tokens, /*normalized=*/false, compose_)),
      added_in_normalized_(Select(bpe.added_tokens, /*normalized=*/true, compose_)),
      begin_of_text_(bpe.begin_of_text),
      end_of_text_(bpe.end_of_text) {
  keeps_text_ = !compose_ && !add_prefix_space_;
  if (bpe.ignore_merges) {
    for (const int32_t token : bpe.word_tokens) words_[texts_[static_cast<size_t>(token)]] = token;
  }
  for (const AddedToken& token : bpe.added_tokens) {
    added_[token.text] = token.token;
    if (token.strip_left || token.strip_right || token.single_word ||
        token.text.find(' ') != std::string::npos) {
      can_cut_ = false;
    }
    // They take white space along.
    if (token.strip_left || token.strip_right) keeps_text_ = false;
  }
  for (const char* const end : kEndsOfText) {
    if (!end_of_text_.has_value()) end_of_text_ = FindToken(end);
  }
}

BpeTokenizer::~BpeTokenizer() = default;

std::optional<int32_t> BpeTokenizer::FindToken(absl::string_view name) const {
  const auto added = added_.find(name);
  if (added != added_.end()) return added->second;
  const auto found = std::find(texts_.begin(), texts_.end(), name);
  if (name.empty() || found == texts_.end()) return std::nullopt;
  return static_cast<int32_t>(found - texts_.begin());
}

std::unique_ptr<BpeTokenizer::Scratch> BpeTokenizer::TakeScratch() const {
  {
    const absl::MutexLock lock(&mutex_);
    if (!free_scratch_.empty()) {
      std::unique_ptr<Scratch> scratch = std::move(free_scratch_.back());
      free_scratch_.pop_back();
      return scratch;
    }
  }
  return std::make_unique<Scratch>();
}

void BpeTokenizer::ReturnScratch(std::unique_ptr<Scratch> scratch) const {
  const absl::MutexLock lock(&mutex_);
  free_scratch_.push_back(std::move(scratch));
}

absl::Status BpeTokenizer::Encode(absl::string_view text, std::vector<int32_t>& tokens) const {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a text of ", text.size(),
                                                   " bytes is too long to be encoded at once; at "
                                                   "most ",
                                                   kMaxTextBytes, " bytes"));
  }
  std::unique_ptr<Scratch> scratch = TakeScratch();
  scratch->parts.clear();
  added_as_written_.Split(text, scratch->parts);
  for (const AddedTokenFinder::Part& part : scratch->parts) {
    if (part.token >= 0) {
      tokens.push_back(part.token);
    } else {
      EncodeText(part.text, *scratch, tokens);
    }
  }
  ReturnScratch(std::move(scratch));
  return absl::OkStatus();
}

void BpeTokenizer::EncodeText(absl::string_view text, Scratch& scratch,
                              std::vector<int32_t>& tokens) const {
  if (compose_) text = Composed(text, scratch.composed);
  if (added_in_normalized_.empty()) return EncodeWords(text, scratch, tokens);
  scratch.normalized_parts.clear();
  added_in_normalized_.Split(text, scratch.normalized_parts);
  for (const AddedTokenFinder::Part& part : scratch.normalized_parts) {
    if (part.token >= 0) {
      tokens.push_back(part.token);
    } else {
      EncodeWords(part.text, scratch, tokens);
    }
  }
}

void BpeTokenizer::EncodeWords(absl::string_view text, Scratch& scratch,
                               std::vector<int32_t>& tokens) const {
  if (add_prefix_space_ && !text.empty() && text.front() != ' ') {
    scratch.prefixed.assign(1, ' ');
    scratch.prefixed.append(text.data(), text.size());
    text = scratch.prefixed;
  }
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at < end;) {
    const char* const word_end = word_end_(at, end);
    EncodeWord({at, static_cast<size_t>(word_end - at)}, scratch, tokens);
    at = word_end;
  }
}

void BpeTokenizer::EncodeWord(absl::string_view word, Scratch& scratch,
                              std::vector<int32_t>& tokens) const {
  if (word.size() == 1) {
    tokens.push_back(byte_tokens_[static_cast<uint8_t>(word.front())]);
    return;
  }
  const bool is_cached = word.size() <= Scratch::kMaxWordBytes;
  Scratch::Place* place = nullptr;
  if (is_cached) {
    place = &scratch.places[Scratch::PlaceOf(word)];
    if (place->bytes == word.size() && std::memcmp(place->word, word.data(), word.size()) == 0) {
      tokens.insert(tokens.end(), place->tokens, place->tokens + place->count);
      return;
    }
  }
  const size_t begin = tokens.size();
  const auto known = words_.find(word);
  if (known != words_.end()) {
    tokens.push_back(known->second);
  } else {
    merges_.Encode(word, scratch.merges, tokens);
  }
  const size_t count = tokens.size() - begin;
  if (!is_cached || count > Scratch::kMaxWordTokens) return;
  std::memcpy(place->word, word.data(), word.size());
  place->bytes = static_cast<uint8_t>(word.size());
  std::copy(tokens.begin() + static_cast<ptrdiff_t>(begin), tokens.end(), place->tokens);
  place->count = static_cast<uint8_t>(count);
}

absl::StatusOr<std::string> BpeTokenizer::Decode(std::span<const int32_t> tokens) const {
  std::string text;
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocabulary_size()) {
      return absl::InvalidArgumentError(absl::StrCat("token ", token,
                                                     " is not in the vocabulary of ",
                                                     vocabulary_size(), " tokens of ", name_));
    }
    text += texts_[static_cast<size_t>(token)];
  }
  return text;
}

size_t BpeTokenizer::NextCut(absl::string_view text, size_t from) const {
  return can_cut_ ? NextWordBorder(pattern_, text, from) : text.size();
}

}  // namespace causeway::worker
