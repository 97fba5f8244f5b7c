// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "sherd/comm/world.h"

namespace sherd {

/// Returns the name of each rank's host. Collective; blocks. In an emulated world all are this one.
std::vector<std::string> host_names(const World& world);

}  // namespace sherd
