// SPDX-License-Identifier: Apache-2.0
#include "sherd/models/pretrained.h"

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <optional>

#include "models/huggingface/weights_folder.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/shard/fully_shard.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

/// Of all tensors that a model is saved as.
TensorShapes tensor_shapes(const LanguageModel& model) {
  TensorShapes result;
  for (const auto& item : model.named_parameters()) {
    for (const auto& slice : model.slices_of(item.key(), whole_shape(item.value()))) {
      result[slice.tensor] = slice.shape;
    }
  }
  return result;
}

}  // namespace

LlamaOptions& base_of(ModelOptions& options) {
  if (auto* moe = std::get_if<MoeOptions>(&options)) return moe->base;
  if (auto* hybrid = std::get_if<HybridOptions>(&options)) return hybrid->base;
  return std::get<LlamaOptions>(options);
}

std::shared_ptr<LanguageModel> make_model(const ModelOptions& options) {
  if (const auto* moe = std::get_if<MoeOptions>(&options)) return make_moe(*moe);
  if (const auto* hybrid = std::get_if<HybridOptions>(&options)) return make_hybrid(*hybrid);
  return make_llama(std::get<LlamaOptions>(options));
}

void check_weights(const LanguageModel& model, const std::string& folder) {
  WeightsFolder weights{fs::path(folder)};
  const auto shapes = tensor_shapes(model);
  weights.check_names(shapes);
  for (const auto& [name, shape] : shapes) weights.check(name, shape);
}

void load_weights(LanguageModel& model, const std::string& folder) {
  std::optional<WeightsFolder> weights;  // opened where an error reaches all ranks
  const auto shapes = tensor_shapes(model);
  const auto slices = [&](const std::string& name, at::IntArrayRef shape) {
    return model.slices_of(name, shape);
  };
  const auto check = [&](const std::string& name) {
    if (!weights) weights.emplace(fs::path(folder)).check_names(shapes);
    weights->check(name, shapes.at(name));
  };
  const auto read = [&](const std::string& name, int64_t begin, int64_t count) {
    return weights->read(name, shapes.at(name), begin, count);
  };
  load_elements(model, slices, read, check);
}

}  // namespace sherd
