// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "shard/unit/unit.h"

namespace sherd {

/// The lines of ranks that hold the same part of a parameter. A line is all ranks along the
/// data-parallel axes of its mesh.
struct PartLines {
  int64_t index = 0;  ///< index of this rank's line among them, by their first ranks
  int64_t count = 1;  ///< number of these lines
};

/// Compares the parameters of all ranks and returns the lines of each, by unit, group and member.
/// The last unit is the root. Collective; blocks. An emulated rank is alone and compares nothing.
///
/// Throws on all ranks, naming the parameter, unless all have the same parameters with parts of the
/// same size, on lines of as many ranks; the parts of each parameter make the whole, each of them
/// on as many lines; a parameter that is no part lies on all ranks of the world; and so does the
/// root.
std::vector<PartLines> agree_on_cuts(const std::vector<Unit*>& units);

}  // namespace sherd
