// SPDX-License-Identifier: Apache-2.0
#include "forecast/rehearsal.h"

#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "configuration/optimizer.h"
#include "configuration/setup.h"
#include "sherd/optim/adamw.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/meta_memory.h"
#include "sherd/shard/module.h"
#include "sherd/shard/recording.h"

namespace sherd {
namespace {

/// A full batch; of a model that sees, with as many images as its tokens can hold.
Batch batch_of(const Configuration& configuration) {
  const auto& [model, data] = std::tie(configuration.model, configuration.data);
  const auto numbers = at::TensorOptions().dtype(at::kLong).device(at::kMeta);
  Batch batch;
  batch.tokens = at::empty({data.batch, data.seq}, numbers);
  batch.targets = at::empty({data.batch, data.seq}, numbers);
  if (model.kind != "vlm") return batch;
  const int64_t side = model.image_size / model.patch;
  const int64_t images = data.batch * (data.seq / (side * side));
  if (images == 0) return batch;
  batch.images =
      at::empty({images, 3, model.image_size, model.image_size}, numbers.dtype(at::kFloat));
  batch.image_places = at::empty({images * side * side}, numbers);
  batch.image_patches = at::empty({images * side * side}, numbers);
  return batch;
}

/// Products take two operations per weight and token, but for a table that is looked up; attention
/// has no weights and is shared by the units between.
std::vector<double> flops_of(const Program& program, double forward_flops) {
  std::vector<double> flops;
  double sum = 0;
  double layers = 0;
  for (const auto& unit : program.units()) {
    double weights = 0;
    for (const auto& group : unit.groups) weights += static_cast<double>(group.elements);
    const bool looked_up = unit.name == "embedding";
    flops.push_back(looked_up ? 0 : 2 * weights);
    sum += flops.back();
    layers += unit.name.rfind("layer", 0) == 0;
  }
  // Where a token takes only some of the weights (experts), layers have less than that.
  double in_layers = 0;
  const auto is_layer = [&](size_t i) { return program.units()[i].name.rfind("layer", 0) == 0; };
  for (size_t i = 0; i < flops.size(); ++i) in_layers += is_layer(i) ? flops[i] : 0;
  const double rest = forward_flops - sum;
  for (size_t i = 0; i < flops.size(); ++i) {
    if (!is_layer(i)) continue;
    if (rest >= 0) {
      flops[i] += rest / layers;
    } else {
      flops[i] *= std::max(0.0, 1 + rest / in_layers);
    }
  }
  return flops;
}

}  // namespace

Rehearsal dry_run(
    const Configuration& configuration, int64_t ranks, c10::DeviceType target, int64_t rank) {
  const MetaTarget stands_for(target);
  const auto world =
      World::emulated({.rank = rank, .size = ranks, .device = c10::Device(c10::kMeta)});
  const auto mesh = mesh_of(configuration.shard, world);
  const auto model = sharded_model_of(configuration, mesh);
  const AdamW optimizer(*model, optimizer_of(configuration, *model));
  // As torch's CUDA allocator rounds.
  MetaMemory memory(target == c10::DeviceType::CUDA ? 512 : 1);
  Recording recording(*model, [&] { return memory.live(); });
  {
    const auto batch = batch_of(configuration);
    memory.restart_peak();
    const auto loss = call(*model, batch);
    optimizer.scale(loss * 0.5).backward();
  }
  const auto record = recording.finish();
  Rehearsal result{program(*model)};
  result.bytes = model_bytes(*model);
  if (configuration.memory.kind == "eager") result.bytes.arena = result.program.bytes().arena;
  result.optimizer = optimizer.allocated_bytes();
  result.optimizer_control = optimizer.control_bytes();
  result.kept = record.kept;
  result.activations = memory.peak();
  for (const auto& parameter : model->parameters()) result.parameters += parameter.numel();
  result.flops_per_token = model->flops_per_token(configuration.data.seq);
  result.flops = flops_of(result.program, result.flops_per_token / 3);
  return result;
}

}  // namespace sherd
