// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "shard/sharded_model.h"

namespace sherd {

/// Runs `action`; if it throws on one rank, throws that error on all. Collective; blocks.
void on_all_ranks(const ShardedModel& model, const std::function<void()>& action);

/// The same for an action that may take longer than WorldOptions::operation_timeout, such as
/// writing to a slow disk. It runs on a thread of its own, with the caller's stream, and the ranks
/// exchange a message every `interval`, so that no operation waits too long.
void on_all_ranks_for_long(
    const ShardedModel& model,
    const std::function<void()>& action,
    std::chrono::milliseconds interval = std::chrono::seconds(1));

}  // namespace sherd
