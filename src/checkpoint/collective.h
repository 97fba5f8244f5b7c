// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "shard/sharded_model.h"

namespace sherd {

/// Runs `action` here and then throws on all ranks where it threw on one. Collective.
void on_all_ranks(const ShardedModel& model, const std::function<void()>& action);

/// The same for an action that may take longer than an operation may, such as writing to a slow
/// disk: it runs on a thread of its own, with the caller's stream, and every `interval` the ranks
/// tell each other that it is under way, so that none waits for the end of an operation's time.
void on_all_ranks_for_long(
    const ShardedModel& model,
    const std::function<void()>& action,
    std::chrono::milliseconds interval = std::chrono::seconds(1));

}  // namespace sherd
