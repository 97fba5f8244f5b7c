// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/pattern.h"

namespace sherd {

/// One cut of a text at what a pattern matches.
struct Split {
  /// What becomes of the matches: pieces of their own; dropped; one piece with neighbours of their
  /// kind; joined to the piece before or after them.
  enum class Behavior { isolated, removed, contiguous, with_previous, with_next };
  Pattern pattern;
  Behavior behavior = Behavior::isolated;
  bool invert = false;  ///< what does not match counts as the match
};

/// Cuts a text into the pieces that are tokenized on their own. Pieces go out as they are found, in
/// the order of the text, so that a text of any length needs no memory.
class PreTokenizer {
 public:
  using Sink = std::function<void(std::string_view)>;
  struct Options {
    std::vector<Split> splits;  ///< each cuts the pieces of the one before
    bool prefix_space = false;  ///< a piece of the splits begins with a space, or gets one
    bool gpt2 = false;          ///< and is cut once more, as GPT-2 does
  };
  explicit PreTokenizer(Options options);

  /// The text is valid UTF-8.
  void run(std::string_view text, const Sink& sink) { run(0, text, sink); }

 private:
  void run(size_t step, std::string_view text, const Sink& sink);
  void finish(std::string_view text, const Sink& sink);

  Options options_;
  std::optional<Split> words_;
  std::string prefixed_;
};

}  // namespace sherd
