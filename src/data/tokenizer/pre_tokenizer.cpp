// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/pre_tokenizer.h"

#include "data/tokenizer/utf8.h"

namespace sherd {
namespace {

constexpr const char* kGpt2 =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/// Joins the pieces that a split's behavior wants joined, and passes them on.
class Joiner {
 public:
  Joiner(std::string_view text, const Split& split, const PreTokenizer::Sink& sink)
      : text_(text), split_(split), sink_(sink) {}

  /// Pieces come in order and leave no gap.
  void add(size_t begin, size_t end, bool match) {
    match = match != split_.invert;
    if (!joins(match)) {
      flush();
      begin_ = begin;
    }
    end_ = end;
    pending_ = true;
    previous_ = match;
  }
  void flush() {
    const bool dropped = split_.behavior == Split::Behavior::removed && previous_;
    if (pending_ && !dropped && end_ > begin_) sink_(text_.substr(begin_, end_ - begin_));
    pending_ = false;
  }

 private:
  bool joins(bool match) const {
    if (!pending_) return false;
    switch (split_.behavior) {
      case Split::Behavior::contiguous: return match == previous_;
      case Split::Behavior::with_previous: return match && !previous_;
      case Split::Behavior::with_next: return !match && previous_;
      default: return false;
    }
  }

  std::string_view text_;
  const Split& split_;
  const PreTokenizer::Sink& sink_;
  size_t begin_ = 0, end_ = 0;
  bool pending_ = false, previous_ = false;
};

void cut(Split& split, std::string_view text, const PreTokenizer::Sink& sink) {
  Joiner joiner(text, split, sink);
  size_t done = 0;
  size_t from = 0;
  std::optional<size_t> last_end;
  while (from <= text.size()) {
    const auto match = split.pattern.find(text, from);
    if (!match) break;
    if (match->begin == match->end && last_end == match->end) {
      // An empty match right after a match is none; the next may begin after one character.
      from += from < text.size() ? character_at(text, from).bytes : 1;
      continue;
    }
    if (done != match->begin) joiner.add(done, match->begin, false);
    joiner.add(match->begin, match->end, true);
    from = done = match->end;
    last_end = match->end;
  }
  if (done != text.size()) joiner.add(done, text.size(), false);
  joiner.flush();
}

}  // namespace

PreTokenizer::PreTokenizer(Options options) : options_(std::move(options)) {
  if (options_.gpt2) {
    words_ = Split{.pattern = Pattern(kGpt2, Pattern::Syntax::oniguruma, "GPT-2's pattern")};
  }
}

void PreTokenizer::run(size_t step, std::string_view text, const Sink& sink) {
  if (step == options_.splits.size()) return finish(text, sink);
  cut(options_.splits[step], text, [&](std::string_view piece) { run(step + 1, piece, sink); });
}

void PreTokenizer::finish(std::string_view text, const Sink& sink) {
  if (text.empty()) return;
  if (options_.prefix_space && text.front() != ' ') {
    prefixed_.assign(1, ' ');
    prefixed_ += text;
    text = prefixed_;
  }
  if (words_) {
    cut(*words_, text, sink);
  } else {
    sink(text);
  }
}

}  // namespace sherd
