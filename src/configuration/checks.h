// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "configuration/configuration.h"

namespace sherd {

/// Checks relations between keys; adds a line for each problem.
void check_together(const Configuration& all, std::vector<std::string>& problems);

}  // namespace sherd
