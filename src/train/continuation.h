// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sherd/comm/world.h"
#include "sherd/models/language_model.h"
#include "train/token_choice.h"

namespace sherd {

struct ContinuationOptions {
  int64_t max_tokens = 128;
  std::vector<int64_t> ends{};  ///< tokens that end the text
  TokenChoice choice{};
};

/// Returns the tokens that the model writes after some others, up to `max_tokens` or one that ends
/// the text, which is then the last. Calls `each`, if given, with every one. Uses a cache of keys
/// and values where the model has one, else it computes all tokens for each new one. Collective:
/// all ranks give the same tokens and get those that the first rank has chosen. Waits for the
/// device.
std::vector<int64_t> continuation_of(
    LanguageModel& model,
    const World& world,
    const std::vector<int64_t>& tokens,
    const ContinuationOptions& options,
    const std::function<void(int64_t)>& each = {});

}  // namespace sherd
