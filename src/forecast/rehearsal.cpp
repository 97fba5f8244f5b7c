// SPDX-License-Identifier: Apache-2.0
#include "forecast/rehearsal.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>
#include <torch/nn/module.h>

#include <map>

#include "configuration/optimizer.h"
#include "configuration/setup.h"
#include "shard/diagnostics/recording.h"
#include "shard/meta_memory.h"
#include "sherd/optim/adamw.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"

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

/// The model's operations in the order of the program's units.
std::vector<UnitOperations> operations_of(
    const Program& program, const LanguageModel& model, int64_t seq) {
  std::map<std::string, UnitOperations> by_name;
  for (auto& one : model.operations(seq)) by_name[one.unit] = one;
  const auto inside = model.named_modules("", /*include_self=*/false);
  std::vector<UnitOperations> result;
  for (const auto& unit : program.units()) {
    // The model itself has another name in the program.
    const auto found = by_name.extract(inside.contains(unit.name) ? unit.name : "");
    result.push_back(found ? found.mapped() : UnitOperations{unit.name});
  }
  TORCH_INTERNAL_ASSERT(
      by_name.empty(), "[forecast] the model counts operations of '", by_name.begin()->first,
      "', which is not one of its units");
  return result;
}

/// Each token goes through each weight once, also where ranks have a part of both.
std::vector<Fp8Operations> fp8_operations_of(
    const Program& program, const LanguageModel& model, const Configuration& configuration) {
  const auto weights = fp8_weights_of(configuration, model);
  const auto parameters = model.named_parameters();
  std::vector<Fp8Operations> result(program.units().size());
  for (const auto& name : weights) {
    const auto shape = whole_shape(parameters[name]);
    const auto operations =
        2.0 * static_cast<double>(c10::multiply_integers(shape.begin(), shape.end()));
    for (size_t i = 0; i < result.size(); ++i) {
      if (name.rfind(program.units()[i].name + ".", 0) != 0) continue;
      result[i].forward += operations;
      if (name.ends_with(".gate_up.weight")) result[i].selective += operations;
    }
  }
  return result;
}

}  // namespace

Rehearsal dry_run(
    const Configuration& configuration, int64_t ranks, c10::DeviceType target, int64_t rank) {
  const MetaTarget stands_for(target);
  const auto world =
      World::emulated({.rank = rank, .size = ranks, .device = c10::Device(c10::kMeta)});
  const auto mesh = mesh_of(configuration, world);
  const auto model = sharded_model_of(configuration, mesh);
  const AdamW optimizer(*model, optimizer_of(configuration, *model));
  // As torch's CUDA allocator rounds.
  MetaMemory memory(target == c10::DeviceType::CUDA ? 512 : 1);
  Recording recording(*model, [&] { return memory.live(); });
  {
    const auto batch = model->part_of(batch_of(configuration));
    memory.restart_peak();
    const auto loss = call(*model, batch);
    optimizer.scale(loss * 0.5).backward();
  }
  const auto record = recording.finish();
  Rehearsal result{program(*model)};
  result.bytes = allocated_bytes(*model);
  if (configuration.memory.kind == "eager") result.bytes.arena = result.program.bytes().arena;
  result.optimizer = optimizer.allocated_bytes();
  result.saved_activations = record.saved_activations;
  result.activations = memory.peak();
  for (const auto& parameter : model->parameters()) {
    const auto shape = whole_shape(parameter);
    result.parameters += c10::multiply_integers(shape.begin(), shape.end());
  }
  result.flops_per_token = model->flops_per_token(configuration.data.seq);
  const auto& parallel = configuration.parallel;
  for (const int64_t size : {parallel.cp, parallel.tp, parallel.ep}) {
    if (size > 1) ++result.exchange_axes;
  }
  result.operations = operations_of(result.program, *model, configuration.data.seq);
  result.fp8 = fp8_operations_of(result.program, *model, configuration);
  return result;
}

}  // namespace sherd
