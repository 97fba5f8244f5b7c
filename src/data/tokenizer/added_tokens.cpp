// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/added_tokens.h"

#include <algorithm>

#include "data/tokenizer/utf8.h"

namespace sherd {
namespace {

uint8_t byte_of(const std::string& text, size_t at) {
  return static_cast<uint8_t>(text[at]);
}

size_t before_white_space(std::string_view text, size_t least, size_t at) {
  while (at > least) {
    const auto character = character_before(text, at);
    if (!is_white_space(character.code)) break;
    at -= character.bytes;
  }
  return at;
}

size_t after_white_space(std::string_view text, size_t at) {
  while (at < text.size()) {
    const auto character = character_at(text, at);
    if (!is_white_space(character.code)) break;
    at += character.bytes;
  }
  return at;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.content < b.content;
  });
  for (const auto& token : tokens_) {
    first_[byte_of(token.content, 0)] = true;
    if (token.single_word && !letter_) {
      letter_.emplace(
          "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}]", Pattern::Syntax::pcre,
          "the letters that may not be next to a single_word token");
    }
  }
}

const AddedToken* AddedTokens::longest(std::string_view text, size_t at) const {
  // The tokens that agree with the text so far are neighbours; each byte leaves fewer of them.
  auto first = tokens_.begin();
  auto last = tokens_.end();
  const AddedToken* found = nullptr;
  for (size_t depth = 0; at + depth < text.size() && first != last; ++depth) {
    const auto byte = static_cast<uint8_t>(text[at + depth]);
    // A token that ends here stands before those that go on.
    if (first->content.size() == depth) ++first;
    first = std::lower_bound(first, last, byte, [&](const AddedToken& token, uint8_t value) {
      return byte_of(token.content, depth) < value;
    });
    last = std::upper_bound(first, last, byte, [&](uint8_t value, const AddedToken& token) {
      return value < byte_of(token.content, depth);
    });
    if (first != last && first->content.size() == depth + 1) found = &*first;
  }
  return found;
}

bool AddedTokens::stands_alone(std::string_view text, size_t begin, size_t end) {
  const auto is_letter = [&](std::string_view character) {
    return letter_->find(character, 0).has_value();
  };
  if (begin > 0) {
    const size_t bytes = character_before(text, begin).bytes;
    if (is_letter(text.substr(begin - bytes, bytes))) return false;
  }
  return end == text.size() || !is_letter(text.substr(end, character_at(text, end).bytes));
}

void AddedTokens::split(std::string_view text, const Text& between, const Found& found) {
  size_t done = 0;
  size_t at = 0;
  while (!tokens_.empty() && at < text.size()) {
    const auto* token = first_[static_cast<uint8_t>(text[at])] ? longest(text, at) : nullptr;
    if (!token) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at += token->content.size();
    if (token->single_word && !stands_alone(text, begin, end)) continue;
    if (token->lstrip) begin = std::max(before_white_space(text, done, begin), done);
    if (token->rstrip) end = after_white_space(text, end);
    if (done < begin) between(text.substr(done, begin - done));
    found(token->id);
    done = end;
  }
  if (done < text.size()) between(text.substr(done));
}

}  // namespace sherd
