// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sherd/comm/world.h"

namespace sherd::testing {

/// The world that the tests of this process run in: SHERD_TEST_BACKEND names its backend (mpi,
/// tcp, nccl, or emulated: rank 2 of 5, or of SHERD_TEST_WORLD), default mpi.
const World& test_world();

inline bool is_emulated() {
  return test_world().launcher() == Launcher::emulated;
}

}  // namespace sherd::testing
