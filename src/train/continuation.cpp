// SPDX-License-Identifier: Apache-2.0
#include "train/continuation.h"

#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>

#include "data/across_ranks.h"
#include "sherd/shard/boundary.h"

namespace sherd {
namespace {

/// Inside the root's forward, where all that is the root's is gathered.
at::Tensor logits_after(
    LanguageModel& model,
    const World& world,
    const std::vector<int64_t>& tokens,
    KeyValueCache* cache) {
  const Batch batch{at::tensor(tokens, at::kLong).unsqueeze(0).to(world.device()), {}};
  auto call = before_forward(model);
  try {
    const auto logits_V = model.next_logits(batch, cache).select(0, 0);
    after_forward(call, {});
    return logits_V;
  } catch (...) {
    abandon(call);
    throw;
  }
}

}  // namespace

std::vector<int64_t> continuation_of(
    LanguageModel& model,
    const World& world,
    const std::vector<int64_t>& tokens,
    const ContinuationOptions& options,
    const std::function<void(int64_t)>& each) {
  TORCH_CHECK_VALUE(!tokens.empty(), "[generate] there is no token to begin with: give a prompt");
  const c10::NoGradGuard no_grad;
  TokenChooser chooser(options.choice);
  std::optional<KeyValueCache> cache;
  if (model.caches()) cache.emplace().capacity = std::ssize(tokens) + options.max_tokens;
  auto given = tokens;  // to the model, at once
  std::vector<int64_t> result;
  while (std::ssize(result) < options.max_tokens) {
    const auto logits_V = logits_after(model, world, given, cache ? &*cache : nullptr);
    int64_t next = world.rank() == 0 ? chooser.choose(logits_V) : 0;
    if (world.size() > 1) next = numbers_of_first_rank(world, {next})[0];
    result.push_back(next);
    if (each) each(next);
    if (std::find(options.ends.begin(), options.ends.end(), next) != options.ends.end()) break;
    if (cache) given.clear();
    given.push_back(next);
  }
  return result;
}

}  // namespace sherd
