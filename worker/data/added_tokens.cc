#include "worker/data/added_tokens.h"

#include <algorithm>
#include <utility>

#include "worker/data/characters.h"

namespace causeway::worker {
namespace {

size_t SkipSpaceRight(absl::string_view text, size_t at) {
  const CharacterTable& table = CharacterTable::Get();
  while (at < text.size()) {
    const Character c = table.At(text.data() + at, text.data() + text.size());
    if (!IsWhiteSpace(c.character_class)) break;
    at += c.bytes;
  }
  return at;
}

// Never before `least`.
size_t SkipSpaceLeft(absl::string_view text, size_t at, size_t least) {
  const CharacterTable& table = CharacterTable::Get();
  while (at > least) {
    size_t begin = at - 1;
    while (begin > least && at - begin < 4 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) {
      --begin;
    }
    const Character c = table.At(text.data() + begin, text.data() + at);
    if (begin + c.bytes != at || !IsWhiteSpace(c.character_class)) break;
    at = begin;
  }
  return at;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), ends_here_(1, -1) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& text = tokens_[i].text;
    begins_[static_cast<uint8_t>(text.front())] = true;
    uint32_t node = 0;
    for (const char byte : text) {
      const auto [child, is_new] =
          children_.emplace(Edge(node, byte), static_cast<uint32_t>(ends_here_.size()));
      if (is_new) ends_here_.push_back(-1);
      node = child->second;
    }
    // The first of two tokens with equal text counts (normalized ones may come to that).
    if (ends_here_[node] < 0) ends_here_[node] = static_cast<int32_t>(i);
  }
  has_only_begin_ = std::count(begins_.begin(), begins_.end(), true) == 1;
  if (has_only_begin_) only_begin_ = tokens_.front().text.front();
}

AddedTokenFinder::Match AddedTokenFinder::Next(absl::string_view text, size_t from) const {
  for (size_t at = from; at < text.size(); ++at) {
    if (has_only_begin_) {
      at = text.find(only_begin_, at);
      if (at == absl::string_view::npos) break;
    } else if (!begins_[static_cast<uint8_t>(text[at])]) {
      continue;
    }
    Match match;
    uint32_t node = 0;
    for (size_t i = at; i < text.size(); ++i) {
      const auto child = children_.find(Edge(node, text[i]));
      if (child == children_.end()) break;
      node = child->second;
      if (ends_here_[node] >= 0) {
        match = {at, i + 1, &tokens_[static_cast<size_t>(ends_here_[node])]};
      }
    }
    if (match.token != nullptr) return match;
  }
  return {};
}

void AddedTokenFinder::Split(absl::string_view text, std::vector<Part>& parts) const {
  size_t done = 0;
  size_t from = 0;
  while (!tokens_.empty()) {
    Match match = Next(text, from);
    if (match.token == nullptr) break;
    from = match.end;
    const AddedToken& token = *match.token;
    if (token.single_word && (WordEndsAt(text, match.begin) || WordBeginsAt(text, match.end))) {
      continue;
    }
    if (match.begin < done) continue;
    if (token.strip_left) match.begin = SkipSpaceLeft(text, match.begin, done);
    if (token.strip_right) match.end = SkipSpaceRight(text, match.end);
    if (match.begin > done) parts.push_back({text.substr(done, match.begin - done), -1});
    parts.push_back({text.substr(match.begin, match.end - match.begin), token.token});
    done = match.end;
  }
  if (done < text.size()) parts.push_back({text.substr(done), -1});
}

}  // namespace causeway::worker
