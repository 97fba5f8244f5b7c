// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/pattern_syntax.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>

namespace sherd {
namespace {

// White space by its code points: PCRE2's \s has U+180E besides, which Unicode has not.
constexpr std::string_view kSpaces =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";
constexpr std::string_view kNoSpaces =
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-"
    "\\x{10ffff}";
constexpr size_t kLongestName = 40;

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument(what);
}

bool is_digit(char letter) {
  return letter >= '0' && letter <= '9';
}
bool is_hexadecimal(char letter) {
  return is_digit(letter) || (letter >= 'a' && letter <= 'f') || (letter >= 'A' && letter <= 'F');
}
bool is_letter(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
}

class Translation {
 public:
  explicit Translation(std::string_view from) : from_(from) {}

  std::string run() {
    while (at_ < from_.size()) {
      const char letter = from_[at_];
      if (letter == '\\') {
        escape();
      } else if (in_class_) {
        class_letter(letter);
      } else if (letter == '(') {
        group();
      } else if (letter == '{') {
        interval();
      } else if (letter == '[') {
        begin_class();
      } else {
        take(1);
      }
    }
    if (in_class_) refuse("a [ is not closed");
    return std::move(into_);
  }

 private:
  bool follows(std::string_view text) const { return from_.substr(at_).starts_with(text); }
  void take(size_t count) {
    into_ += from_.substr(at_, count);
    at_ += count;
  }

  void begin_class() {
    in_class_ = true;
    take(follows("[^") ? 2 : 1);
    if (follows("]")) refuse("a ] that begins a class: write \\]");
  }

  void class_letter(char letter) {
    if (letter == '[') refuse("a [ within a class is not supported: write \\[ for the letter");
    if (follows("&&")) refuse("&& within a class is not supported");
    if (letter == ']') in_class_ = false;
    take(1);
  }

  void group() {
    if (follows("(*")) refuse("(* is not supported");
    if (!follows("(?")) return take(1);
    for (const std::string_view known : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"}) {
      if (follows(known)) return take(known.size());
    }
    // Elsewhere, Oniguruma's (?i) spans the alternatives that follow, and PCRE2's does not.
    if (at_ == 0 && follows("(?i)")) return take(4);
    refuse(
        "the group '" + std::string(from_.substr(at_, 4)) +
        "' is not supported; there are (?:, (?=, (?!, (?<=, (?<!, (?>, (?i: and, at the start, "
        "(?i)");
  }

  /// A count of repetitions, unless the brace is a letter.
  void interval() {
    size_t end = at_ + 1;
    while (end < from_.size() && (is_digit(from_[end]) || from_[end] == ',')) ++end;
    if (end == at_ + 1 || end >= from_.size() || from_[end] != '}') return take(1);
    if (from_[at_ + 1] == ',') refuse("{,n} is not supported: write {0,n}");
    const char after = end + 1 < from_.size() ? from_[end + 1] : ' ';
    if (after == '+' || after == '?') {
      refuse(std::string("{…}") + after + " is not supported, since engines differ on it");
    }
    take(end + 1 - at_);
  }

  void escape() {
    if (at_ + 1 >= from_.size()) refuse("it ends in a backslash");
    const char letter = from_[at_ + 1];
    switch (letter) {
      case 's':
      case 'S': return white_space(letter == 's');
      case 'd':
      case 'D':
        into_ += letter == 'd' ? "\\p{Nd}" : "\\P{Nd}";
        at_ += 2;
        return;
      case 'p':
      case 'P': return property();
      case 'x':
      case 'u': return number();
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'a':
      case 'e': return take(2);
      default: break;
    }
    const auto byte = static_cast<unsigned char>(letter);
    const bool letter_or_digit = is_letter(letter) || is_digit(letter);
    if (letter_or_digit || byte <= ' ' || byte >= 0x7F) {
      refuse(
          std::string("\\") + (letter_or_digit ? letter : ' ') +
          " is not supported; there are \\s, \\S, \\d, \\D, \\p{…}, \\P{…}, \\n, \\r, \\t, \\f, "
          "\\x{…} and punctuation");
    }
    take(2);
  }

  void white_space(bool is) {
    at_ += 2;
    if (in_class_) {
      into_ += is ? kSpaces : kNoSpaces;
    } else {
      into_ += is ? "[" : "[^";
      into_ += kSpaces;
      into_ += "]";
    }
  }

  void property() {
    const size_t end = from_.find('}', at_);
    if (at_ + 2 >= from_.size() || from_[at_ + 2] != '{' || end == std::string_view::npos) {
      refuse("\\p needs a name in braces");
    }
    auto name = from_.substr(at_ + 3, end - at_ - 3);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    const bool plain = !name.empty() && name.size() <= kLongestName &&
                       std::all_of(name.begin(), name.end(), [](char one) {
                         return is_letter(one) || one == '_';
                       });
    if (!plain) refuse("\\p{…} needs the name of a category or a script");
    into_ += std::string("\\") + from_[at_ + 1] + "{" + (negated ? "^" : "");
    // What is longer than a category is a script; PCRE2 would take its extensions, too.
    if (name.size() > 2) into_ += "sc:";
    into_ += name;
    into_ += "}";
    at_ = end + 1;
  }

  void number() {
    const bool braced = follows("\\x{");
    const size_t begin = at_ + (braced ? 3 : 2);
    size_t end = begin;
    const size_t most = braced ? 8 : from_[at_ + 1] == 'u' ? 4 : 2;
    while (end < from_.size() && end - begin < most && is_hexadecimal(from_[end])) ++end;
    const bool whole =
        braced ? end > begin && end < from_.size() && from_[end] == '}' : end - begin == most;
    // Oniguruma's \xHH is a byte.
    const bool letter = braced || most == 4 || (whole && from_[begin] < '8');
    if (!whole || !letter) refuse("a character by its number is written \\x{…} or \\u…");
    into_ += "\\x{" + std::string(from_.substr(begin, end - begin)) + "}";
    at_ = end + (braced ? 1 : 0);
  }

  std::string_view from_;
  size_t at_ = 0;
  std::string into_;
  bool in_class_ = false;
};

}  // namespace

std::string pcre_from_oniguruma(const std::string& pattern) {
  return Translation(pattern).run();
}

}  // namespace sherd
