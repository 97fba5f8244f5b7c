// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "sherd/shard/diagnostics.h"

namespace sherd {

struct RuntimeParts;

/// What the watches of all ranks have found. Collective; blocks.
std::vector<Finding> collect_findings(RuntimeParts& parts);
/// Warns of findings, or throws NotFiniteError, which says the consequence, too. Collective;
/// blocks.
void report_findings(RuntimeParts& parts, const char* consequence = "");

}  // namespace sherd
