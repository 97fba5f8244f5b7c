// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sherd {

/// What two tokens side by side become; `rank` 0 comes first.
struct PairMerge {
  uint32_t left = 0;
  uint32_t right = 0;
  uint32_t result = 0;
};

/// Merges by the pair of tokens.
class MergeTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Entry {
    uint32_t rank = kNone;
    uint32_t result = 0;
  };
  /// In the order of their ranks. Of two for one pair, the later holds.
  explicit MergeTable(const std::vector<PairMerge>& merges);
  Entry find(uint32_t left, uint32_t right) const;

 private:
  struct Slot {
    uint64_t pair = 0;
    Entry entry;
  };
  size_t place(uint64_t pair) const;

  std::vector<Slot> slots_;  // a power of two of them, at most half of them taken
};

/// So that a map of strings is asked by a view.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
template <class T>
using TextMap = std::unordered_map<std::string, T, TextHash, std::equal_to<>>;

/// Byte pair encoding of pieces of a text. Not for several threads at once: it remembers the words
/// it has seen.
class BytePairs {
 public:
  struct Options {
    std::string name;  ///< of the tokenizer, for messages
    std::array<std::optional<uint32_t>, 256> bytes;
    std::vector<PairMerge> merges;
    TextMap<uint32_t> whole;  ///< pieces that are one token, whatever the merges say
  };
  explicit BytePairs(Options options);

  /// Appends the tokens of a piece: its bytes, of which the pair of the lowest rank, and of several
  /// the leftmost, is merged as long as there is one.
  void encode(std::string_view piece, std::vector<uint32_t>& into);

 private:
  struct Place {
    size_t begin = 0;
    size_t count = 0;
  };
  void begin(std::string_view piece);
  void merge_few();
  void merge_many();

  std::string name_;
  std::array<std::optional<uint32_t>, 256> bytes_;
  MergeTable merges_;
  TextMap<uint32_t> whole_;
  std::vector<uint32_t> symbols_;  // of the piece at hand
  std::vector<MergeTable::Entry> entries_;
  TextMap<Place> words_;
  std::vector<uint32_t> tokens_;  // of those words
};

}  // namespace sherd
