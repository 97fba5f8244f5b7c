// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sherd {

/// A list of ranks that a rank passes to Communicator::split(), as the other ranks see it.
struct SplitList {
  int64_t hash = 0;
  int64_t size = 0;
  friend auto operator<=>(const SplitList&, const SplitList&) = default;
};

SplitList split_list_of(const std::vector<int64_t>& ranks);

/// Throws c10::ValueError unless the ranks' lists divide them into groups. All ranks call it with
/// the same lists, one for each, so either all of them throw or none. `scope` begins the error;
/// `mine` is this rank's list, for the communicator `name`.
void check_split_lists(
    const std::string& scope,
    const std::string& name,
    const std::vector<int64_t>& mine,
    std::span<const SplitList> lists);

}  // namespace sherd
