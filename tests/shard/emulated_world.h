// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ranks/rank_world.h"

namespace sherd::testing {

/// From now on test_world() is an emulated world of CPU ranks, and this process the one in its
/// middle.
void use_emulated_world(int64_t size);

}  // namespace sherd::testing
