// SPDX-License-Identifier: Apache-2.0
#include "comm/split_lists.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <c10/util/hash.h>

#include <map>

namespace sherd {

SplitList split_list_of(const std::vector<int64_t>& ranks) {
  return {static_cast<int64_t>(c10::get_hash(ranks)), std::ssize(ranks)};
}

void check_split_lists(
    const std::string& scope,
    const std::string& name,
    const std::vector<int64_t>& mine,
    std::span<const SplitList> lists) {
  const auto own = split_list_of(mine);
  for (const int64_t member : mine) {
    TORCH_CHECK_VALUE(
        lists[static_cast<size_t>(member)] == own, scope, "rank ", member,
        " passed another list for '", name, "' than this rank's [", c10::Join(", ", mine), "]");
  }
  // A rank whose own group agrees would wait for the others for ever.
  std::map<SplitList, int64_t> passed;
  for (const auto& list : lists) ++passed[list];
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    TORCH_CHECK_VALUE(
        passed[lists[rank]] == lists[rank].size, scope, "rank ", rank, " passed a list of ",
        lists[rank].size, " ranks for '", name, "' that not all of them have passed");
  }
}

}  // namespace sherd
