// SPDX-License-Identifier: Apache-2.0
#include "comm/flight/rank_list.h"

#include <sstream>

namespace sherd {

std::string short_rank_list(std::span<const int64_t> ranks) {
  std::ostringstream out;
  for (size_t i = 0; i < ranks.size();) {
    const int64_t step = i + 1 < ranks.size() ? ranks[i + 1] - ranks[i] : 1;
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] - ranks[end - 1] == step) ++end;
    out << (i == 0 ? "" : ",") << ranks[i] << ':' << step << ':' << end - i;
    i = end;
  }
  return out.str();
}

std::vector<int64_t> parse_rank_list(const std::string& text) {
  constexpr int64_t kMost = 1 << 20;  // ranks: a damaged file must not use up the memory
  std::vector<int64_t> ranks;
  std::istringstream in(text);
  int64_t first = 0, step = 0, count = 0;
  char colon = 0, other = 0, comma = 0;
  while (in >> first >> colon >> step >> other >> count && colon == ':' && other == ':') {
    if (count < 0 || std::ssize(ranks) + count > kMost) return {};
    for (int64_t i = 0; i < count; ++i) ranks.push_back(first + i * step);
    if (!(in >> comma)) return ranks;
    if (comma != ',') return {};
  }
  return {};
}

}  // namespace sherd
