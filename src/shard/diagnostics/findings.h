// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "sherd/shard/diagnostics.h"

namespace sherd {

struct RuntimeParts;

/// Returns the findings of all ranks' gradient watches. Collective; blocks.
std::vector<Finding> collect_findings(RuntimeParts& parts);
/// Warns of exploding gradients; throws NotFiniteError, with `consequence` at its end, if one is
/// not finite. Collective; blocks.
void report_findings(RuntimeParts& parts, const char* consequence = "");

}  // namespace sherd
