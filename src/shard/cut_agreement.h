// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "shard/unit/unit.h"

namespace sherd {

/// Compares the parameters of all ranks. A line is all ranks along the data-parallel axes of a
/// parameter's mesh. The last unit is the root. Collective; blocks. An emulated rank is alone and
/// compares nothing.
///
/// Throws on all ranks, naming the parameter, unless all have the same parameters with parts of the
/// same size, on lines of as many ranks; the parts of each parameter make the whole, each of them
/// on one line; a parameter without a cut lies on all ranks of the world; and so does the root.
void agree_on_cuts(const std::vector<Unit*>& units);

}  // namespace sherd
