// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/byte_pairs.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <queue>

#include "data/tokenizer/byte_symbols.h"

namespace sherd {
namespace {

constexpr size_t kFew = 64;              // bytes up to which looking through all pairs is faster
constexpr size_t kRemembered = 1 << 17;  // words
constexpr size_t kLongestWord = 64;      // bytes of those: longer ones hardly come again

/// The tokens of a long piece, as a list in which each knows its neighbours.
class LinkedSymbols {
 public:
  LinkedSymbols(std::vector<uint32_t>& symbols, const MergeTable& merges)
      : symbols_(symbols),
        merges_(merges),
        previous_(symbols.size()),
        next_(symbols.size()),
        gone_(symbols.size()) {
    const auto count = static_cast<uint32_t>(symbols.size());
    for (uint32_t i = 0; i < count; ++i) {
      previous_[i] = i == 0 ? kEnd : i - 1;
      next_[i] = i + 1 == count ? kEnd : i + 1;
    }
    std::vector<Candidate> candidates;
    for (uint32_t i = 0; i + 1 < count; ++i) {
      const auto entry = merges_.find(symbols_[i], symbols_[i + 1]);
      if (entry.rank != MergeTable::kNone) candidates.push_back({entry.rank, i, entry.result});
    }
    queue_ = Queue(Later{}, std::move(candidates));
  }

  void run() {
    while (!queue_.empty()) {
      const auto top = queue_.top();
      queue_.pop();
      if (gone_[top.at] || next_[top.at] == kEnd) continue;
      const uint32_t right = next_[top.at];
      // The neighbours may have been merged since.
      const auto entry = merges_.find(symbols_[top.at], symbols_[right]);
      if (entry.rank == MergeTable::kNone || entry.result != top.result) continue;
      symbols_[top.at] = top.result;
      gone_[right] = true;
      next_[top.at] = next_[right];
      if (next_[right] != kEnd) previous_[next_[right]] = top.at;
      if (previous_[top.at] != kEnd) push(previous_[top.at]);
      push(top.at);
    }
    size_t kept = 0;
    for (size_t i = 0; i < symbols_.size(); ++i) {
      if (!gone_[i]) symbols_[kept++] = symbols_[i];
    }
    symbols_.resize(kept);
  }

 private:
  static constexpr uint32_t kEnd = UINT32_MAX;
  struct Candidate {
    uint32_t rank = 0;
    uint32_t at = 0;
    uint32_t result = 0;
  };
  struct Later {
    bool operator()(const Candidate& a, const Candidate& b) const {
      return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
    }
  };
  using Queue = std::priority_queue<Candidate, std::vector<Candidate>, Later>;

  void push(uint32_t at) {
    if (next_[at] == kEnd) return;
    const auto entry = merges_.find(symbols_[at], symbols_[next_[at]]);
    if (entry.rank != MergeTable::kNone) queue_.push({entry.rank, at, entry.result});
  }

  std::vector<uint32_t>& symbols_;
  const MergeTable& merges_;
  std::vector<uint32_t> previous_, next_;
  std::vector<bool> gone_;
  Queue queue_;
};

}  // namespace

MergeTable::MergeTable(const std::vector<PairMerge>& merges)
    : slots_(std::bit_ceil(2 * merges.size() + 2)) {
  uint32_t rank = 0;
  for (const auto& merge : merges) {
    const uint64_t pair = uint64_t{merge.left} << 32 | merge.right;
    slots_[place(pair)] = {pair, {rank++, merge.result}};
  }
}

/// Where the pair is, or would be.
size_t MergeTable::place(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  uint64_t mixed = pair * 0x9E3779B97F4A7C15u;
  mixed ^= mixed >> 32;
  size_t at = mixed & mask;
  while (slots_[at].entry.rank != kNone && slots_[at].pair != pair) at = (at + 1) & mask;
  return at;
}

MergeTable::Entry MergeTable::find(uint32_t left, uint32_t right) const {
  return slots_[place(uint64_t{left} << 32 | right)].entry;
}

BytePairs::BytePairs(Options options)
    : name_(std::move(options.name)),
      bytes_(options.bytes),
      merges_(options.merges),
      whole_(std::move(options.whole)) {}

void BytePairs::encode(std::string_view piece, std::vector<uint32_t>& into) {
  const auto known = words_.find(piece);
  if (known != words_.end()) {
    const auto* first = tokens_.data() + known->second.begin;
    into.insert(into.end(), first, first + known->second.count);
    return;
  }
  const auto whole = whole_.find(piece);
  if (whole != whole_.end()) {
    symbols_.assign(1, whole->second);
  } else {
    begin(piece);
    if (symbols_.size() <= kFew) {
      merge_few();
    } else {
      merge_many();
    }
  }
  into.insert(into.end(), symbols_.begin(), symbols_.end());
  if (piece.size() > kLongestWord) return;
  if (words_.size() == kRemembered) {
    words_.clear();
    tokens_.clear();
  }
  words_.emplace(piece, Place{tokens_.size(), symbols_.size()});
  tokens_.insert(tokens_.end(), symbols_.begin(), symbols_.end());
}

void BytePairs::begin(std::string_view piece) {
  TORCH_CHECK_VALUE(
      piece.size() < UINT32_MAX, "[tokenizer] ", name_, ": the text has a piece of ", piece.size(),
      " bytes that the pre_tokenizer does not cut; 4 GiB is too much");
  symbols_.resize(piece.size());
  for (size_t i = 0; i < piece.size(); ++i) {
    const auto byte = static_cast<uint8_t>(piece[i]);
    TORCH_CHECK_VALUE(
        bytes_[byte].has_value(), "[tokenizer] ", name_, ": the text has the byte ", int{byte},
        ", and model.vocab has no token '", symbol_of(byte),
        "' for it; train the tokenizer with the whole byte-level alphabet");
    symbols_[i] = *bytes_[byte];
  }
}

void BytePairs::merge_few() {
  auto& symbols = symbols_;
  entries_.clear();
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    entries_.push_back(merges_.find(symbols[i], symbols[i + 1]));
  }
  while (!entries_.empty()) {
    const auto least = std::min_element(
        entries_.begin(), entries_.end(),
        [](const auto& a, const auto& b) { return a.rank < b.rank; });
    if (least->rank == MergeTable::kNone) return;
    const auto at = least - entries_.begin();
    const auto i = static_cast<size_t>(at);
    symbols[i] = least->result;
    symbols.erase(symbols.begin() + at + 1);
    entries_.erase(least);
    if (i > 0) entries_[i - 1] = merges_.find(symbols[i - 1], symbols[i]);
    if (i < entries_.size()) entries_[i] = merges_.find(symbols[i], symbols[i + 1]);
  }
}

void BytePairs::merge_many() {
  LinkedSymbols(symbols_, merges_).run();
}

}  // namespace sherd
