// SPDX-License-Identifier: Apache-2.0
// In place of tests/ranks/rank_main.cpp, for tests of one process.
#include "shard/emulated_world.h"

#include <map>

namespace sherd::testing {
namespace {

const World* world_in_use = nullptr;

}  // namespace

const World& test_world() {
  return *world_in_use;
}

void use_emulated_world(int64_t size) {
  // One for each size, since the tests' meshes are kept too.
  static std::map<int64_t, World> worlds;
  auto found = worlds.find(size);
  if (found == worlds.end()) {
    found = worlds.emplace(size, World::emulated({.rank = size / 2, .size = size})).first;
  }
  world_in_use = &found->second;
}

}  // namespace sherd::testing
