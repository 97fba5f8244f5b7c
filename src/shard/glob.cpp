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

}  // namespace sherd
