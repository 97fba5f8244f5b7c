// SPDX-License-Identifier: Apache-2.0
// In place of tests/ranks/rank_main.cpp, for tests of one process.
#include "shard/emulated_world.h"

#include <optional>

namespace sherd::testing {
namespace {

std::optional<World>& world_slot() {
  static std::optional<World> world;
  return world;
}

}  // namespace

const World& test_world() {
  return world_slot().value();
}

void use_emulated_world(int64_t size) {
  world_slot() = World::emulated({.rank = size / 2, .size = size});
}

}  // namespace sherd::testing
