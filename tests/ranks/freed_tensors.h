// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>

#include "ranks/rank_world.h"
#include "shard/counting_allocator.h"
#include "sherd/comm/communicator.h"

namespace sherd::testing {

/// Blocks until the communication thread has freed the tensors of all operations that are done: a
/// rank that waits for an operation may go on a moment before that. With `expected` it also waits,
/// for at most 5 seconds, until that many bytes are live: operations of a model that was dropped
/// may still be under way. Returns the live bytes of CPU tensors. Collective: all ranks call it.
inline int64_t wait_for_freed_tensors(std::optional<int64_t> expected = std::nullopt) {
  // Never freed, so that it is part of every number that is returned.
  static auto number = at::zeros({1}, test_world().device());
  test_world().communicator().all_reduce(number, Reduction::sum()).synchronize();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (expected && cpu_memory().live != *expected &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return cpu_memory().live;
}

}  // namespace sherd::testing
