// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace sherd {

/// A compiled pattern. Not for several threads at once: it has the memory of one search.
class Pattern {
 public:
  enum class Syntax { oniguruma, pcre, literal };
  /// `name` is what messages call it: a file and a key. Throws where `source` is not understood.
  Pattern(const std::string& source, Syntax syntax, std::string name);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  struct Match {
    size_t begin = 0;
    size_t end = 0;
  };
  /// The first match at or after `from`. The text is valid UTF-8. Throws where the pattern needs
  /// more steps or memory than a search may take.
  std::optional<Match> find(std::string_view text, size_t from);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sherd
