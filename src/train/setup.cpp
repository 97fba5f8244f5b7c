// SPDX-License-Identifier: Apache-2.0
#include "train/setup.h"

#include <c10/util/Exception.h>

#include "sherd/models/llama.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/initialise.h"

namespace sherd {
namespace {

std::optional<c10::ScalarType> dtype_of(const std::optional<std::string>& word) {
  if (!word) return std::nullopt;
  return *word == "bf16" ? c10::kBFloat16 : *word == "fp16" ? c10::kHalf : c10::kFloat;
}

Precision precision_of(const PrecisionSection& section) {
  if (section.recipe) return Precision::recipe(*section.recipe);
  Precision precision;
  precision.compute = dtype_of(section.compute);
  precision.main = dtype_of(section.main);
  precision.gradient = dtype_of(section.gradient);
  precision.reduce = dtype_of(section.reduce);
  return precision;
}

Recompute recompute_of(const std::string& word) {
  return word == "full"        ? Recompute::full
         : word == "selective" ? Recompute::selective
                               : Recompute::none;
}

LlamaOptions llama_of(const ModelSection& model, const TrainSection& train) {
  LlamaOptions options = model.from ? read_llama_options(*model.from) : LlamaOptions();
  options.recompute = recompute_of(train.recompute);
  if (model.from) return options;
  options.vocab = model.vocab;
  options.dim = model.dim;
  options.layers = model.layers;
  options.heads = model.heads;
  options.kv_heads = model.kv_heads;
  options.head_dim = model.dim / model.heads;
  options.ffn = model.ffn;
  options.rope_theta = model.rope_theta;
  options.norm_eps = model.norm_eps;
  options.tie_embeddings = model.tie_embeddings;
  options.init_std = model.init_std;
  return options;
}

TokenFile::Kind kind_of(const DataSection& data) {
  if (data.text) return TokenFile::Kind::bytes;
  return data.dtype == "uint16" ? TokenFile::Kind::uint16 : TokenFile::Kind::uint32;
}

}  // namespace

c10::ScalarType compute_dtype_of(const PrecisionSection& section) {
  const auto precision = precision_of(section);
  return precision.autocast.value_or(precision.compute.value_or(c10::kFloat));
}

World world_of(const DeviceSection& device) {
  WorldOptions options;
  if (device.kind == "cpu") options.backend = Backend::mpi;
  if (device.kind == "cuda") options.backend = Backend::nccl;
  return World::from_environment(options);
}

Mesh mesh_of(const ShardSection& shard, const World& world) {
  TORCH_CHECK_VALUE(
      world.size() % shard.outer == 0, "[train] shard.outer = ", shard.outer,
      ": it must divide the ranks of this run, of which there are ", world.size());
  if (shard.outer == 1) return Mesh(world, {{"dp", world.size()}});
  return Mesh(world, {{"dp_outer", shard.outer}, {"dp", world.size() / shard.outer}});
}

ShardOptions shard_options_of(const Configuration& configuration, const Mesh& mesh) {
  const auto& shard = configuration.shard;
  const auto inner = strategy_from(shard.strategy);
  ShardOptions options;
  options.mesh = mesh;
  options.placement =
      shard.outer == 1 ? Placement(inner) : Placement(inner, strategy_from(shard.outer_strategy));
  options.precision = precision_of(configuration.precision);
  options.prefetch_depth = shard.prefetch;
  options.loss = configuration.train.loss == "per_token" ? Loss::per_token : Loss::mean;
  return options;
}

std::shared_ptr<LanguageModel> model_of(const Configuration& configuration, const Mesh& mesh) {
  const auto make = [&] {
    const MetaDevice meta;
    return make_llama(llama_of(configuration.model, configuration.train));
  };
  auto model = make();
  const auto options = shard_options_of(configuration, mesh);
  for (const auto& unit : model->units()) fully_shard(unit, options);
  fully_shard(std::shared_ptr<torch::nn::Module>(model), options);
  micro_batches(*model, configuration.data.micro_batches);
  const auto values = [&](const std::string& name, at::IntArrayRef shape) {
    return model->initial_values(name, shape);
  };
  initialise(*model, {.seed = static_cast<uint64_t>(configuration.train.seed), .values = values});
  if (configuration.model.from) load_llama(*model, *configuration.model.from);
  return model;
}

ModelSection resolved(ModelSection model) {
  if (model.from) {
    const auto options = read_llama_options(*model.from);
    model.dim = options.dim;
    model.layers = options.layers;
    model.heads = options.heads;
    model.kv_heads = options.kv_heads;
    model.ffn = options.ffn;
    model.vocab = options.vocab;
    model.rope_theta = options.rope_theta;
    model.norm_eps = options.norm_eps;
    model.tie_embeddings = options.tie_embeddings;
    model.init_std = options.init_std;
    return model;
  }
  if (model.kv_heads == 0) model.kv_heads = model.heads;
  if (model.ffn == 0) model.ffn = (8 * model.dim / 3 + 63) / 64 * 64;
  return model;
}

std::unique_ptr<TokenFile> training_file_of(const DataSection& data) {
  return std::make_unique<TokenFile>(data.text ? *data.text : *data.tokens, kind_of(data));
}

std::unique_ptr<TokenFile> validation_file_of(const DataSection& data) {
  if (!data.validation) return nullptr;
  return std::make_unique<TokenFile>(*data.validation, kind_of(data));
}

}  // namespace sherd
