// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sherd/comm/world.h"

// What the ranks of a run tell each other outside of steps. All of it is collective and blocks.
namespace sherd {

/// Of each number, the largest of all ranks.
std::vector<int64_t> largest_of_ranks(const World& world, const std::vector<int64_t>& mine);
/// The sum of a number of all ranks. In an emulated world the others are taken to have the same.
double sum_of_ranks(const World& world, double mine);
/// The first rank's numbers, on all ranks.
std::vector<int64_t> numbers_of_first_rank(const World& world, const std::vector<int64_t>& mine);
/// Runs a function on the first rank alone, which may be the only one that reads files; all ranks
/// return its text, or throw a ValueError with the words of what it threw.
std::string text_of_first_rank(const World& world, const std::function<std::string()>& function);

}  // namespace sherd
