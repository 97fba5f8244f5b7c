// SPDX-License-Identifier: Apache-2.0
#include "shard/glob.h"

namespace sherd {

bool matches_glob(std::string_view pattern, std::string_view name) {
  const auto star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (name.substr(0, star) != pattern.substr(0, star)) return false;
  const auto rest = pattern.substr(star + 1);
  for (size_t i = star; i <= name.size(); ++i) {
    if (matches_glob(rest, name.substr(i))) return true;
  }
  return false;
}

std::string some_names(const std::vector<std::string>& names) {
  constexpr size_t kMost = 4;
  if (names.empty()) return "none at all";
  std::string text;
  for (size_t i = 0; i < names.size() && i < kMost; ++i) {
    text += (i == 0 ? "'" : ", '") + names[i] + "'";
  }
  if (names.size() > kMost) text += " and " + std::to_string(names.size() - kMost) + " more";
  return text;
}

}  // namespace sherd
