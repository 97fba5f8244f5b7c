// SPDX-License-Identifier: Apache-2.0
#include "train/validation.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "configuration/axes.h"
#include "data/across_ranks.h"
#include "data/sampler.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"

namespace sherd {
double validation_loss(
    LanguageModel& model,
    const Dataset& data,
    const Configuration& configuration,
    const World& world) {
  const c10::NoGradGuard no_grad;
  const int64_t sharing = sharing_ranks_of(configuration);
  const Sampler sampler(
      {.samples = data.samples(),
       .batch = configuration.data.batch,
       .ranks = data_ranks_of(configuration, world.size())});
  auto loss = at::zeros({1}, at::TensorOptions().dtype(at::kDouble).device(world.device()));
  int64_t targets = 0;
  for (int64_t position = 0; position < data.samples();
       position += sampler.samples_from(position)) {
    const auto samples = sampler.samples(position, 0, world.rank() / sharing);
    if (samples.empty() && !model.exchanges()) {
      idle_pass(model);
      continue;
    }
    for (const int64_t sample : samples) targets += data.targets_in(sample);
    const auto device = world.device();
    const auto batch =
        model.part_of(samples.empty() ? data.without_targets(device) : data.load(samples, device));
    loss += call(model, batch);
  }
  // Ranks that share sequences have counted the same targets.
  const double all = sum_of_ranks(world, static_cast<double>(targets));
  return sum_of_ranks(world, loss.item<double>()) /
         std::max(1.0, all / static_cast<double>(sharing));
}

}  // namespace sherd
