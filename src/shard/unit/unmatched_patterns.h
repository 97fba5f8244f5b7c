// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "sherd/shard/options.h"

namespace sherd {

class Unit;

// Note [Which patterns may match nothing]
// Options are often shared: every layer gets the same rules, and some layers have no experts. So a
// pattern may match nothing in one unit if it matches something in another unit of the same model
// that was given the same pattern. If it matches nothing in any of them it is a mistake, most often
// a typo. The whole model is known at its first use, which is where that is found.

/// Patterns of a unit's options that matched none of its parameters when it was sharded.
struct UnmatchedPatterns {
  std::vector<std::string> rules;
  std::vector<std::string> ignored;
};

/// Returns the patterns of a unit's options that match none of the names: `owned` are the unit's
/// parameters, `left_alone` those of its module that are ignored.
UnmatchedPatterns find_unmatched(
    const UnitOptions& options,
    const std::vector<std::string>& owned,
    const std::vector<std::string>& left_alone);

/// Throws, naming pattern and unit, if a pattern matched nothing in all units that were given it.
/// `units` are those of one model.
void check_patterns_match(const std::vector<Unit*>& units);

}  // namespace sherd
