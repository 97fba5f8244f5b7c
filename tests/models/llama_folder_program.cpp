// SPDX-License-Identifier: Apache-2.0
// Loads a Hugging Face folder into a sharded model, writes the logits of some tokens to COPY/logits
// as floats, and saves it again: llama_folder_program FOLDER COPY TOKEN… (under mpirun)
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "sherd/comm/world.h"
#include "sherd/models/pretrained.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"

int main(int argc, char** argv) {
  const auto world = sherd::World::from_environment(
      {.backend = sherd::Backend::mpi, .operation_timeout = std::chrono::seconds(60)});
  const auto options = sherd::read_model_options(argv[1]);
  std::shared_ptr<sherd::LanguageModel> model;
  {
    const sherd::MetaDevice meta;
    model = sherd::make_model(options);
  }
  const sherd::UnitOptions shard{.mesh = sherd::Mesh(world, {{"dp", world.size()}})};
  for (const auto& unit : model->units()) sherd::fully_shard(unit, shard);
  sherd::fully_shard(model, shard);
  sherd::initialise(*model, {.values = [&](const auto& name, auto shape) {
    return model->initial_values(name, shape);
  }});
  sherd::load_weights(*model, argv[1]);
  std::vector<int64_t> tokens;
  for (int i = 3; i < argc; ++i) tokens.push_back(std::atoll(argv[i]));

  // Inside the root's forward, where all that is the root's is gathered.
  const c10::NoGradGuard no_grad;
  const auto batch = sherd::Batch{at::tensor(tokens, at::kLong).unsqueeze(0), {}};
  auto call = sherd::before_forward(*model);
  const auto logits = model->logits(batch).contiguous();
  sherd::after_forward(call, {});
  const auto slices = [&](const std::string& name, at::IntArrayRef shape) {
    return model->slices_of(name, shape);
  };
  sherd::save(
      *model, nullptr, argv[2], {.slices = slices, .texts = {{"config.json", *model->config()}}});
  if (world.rank() != 0) return 0;
  std::ofstream file(std::string(argv[2]) + "/logits", std::ios::binary);
  file.write(
      static_cast<const char*>(logits.const_data_ptr()),
      static_cast<std::streamsize>(logits.nbytes()));
  return file.flush() ? 0 : 1;
}
