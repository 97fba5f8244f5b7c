// SPDX-License-Identifier: Apache-2.0
// What is planned on the meta device is what a run takes, to the byte.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "configuration/optimizer.h"
#include "configuration/setup.h"
#include "forecast/rehearsal.h"
#include "ranks/freed_tensors.h"
#include "ranks/rank_world.h"
#include "shard/counting_allocator.h"
#include "shard/diagnostics/recording.h"
#include "sherd/optim/adamw.h"
#include "sherd/shard/diagnostics.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"

namespace sherd::testing {
namespace {

struct Case {
  std::string model;
  std::string strategy;
  int64_t prefetch = 1;
  int64_t micro_batches = 1;
  std::string recipe = "fp32";
  std::string memory = "planned";
  std::string recompute = "none";
  int64_t keep_gathered = 0;
  ParallelSection parallel{};
  int64_t outer = 1;
};

std::string name_of(const Case& one) {
  return one.model + " " + one.strategy + " " + std::to_string(one.prefetch) + " " +
         std::to_string(one.micro_batches) + " " + one.recipe + " " + one.memory + " " +
         one.recompute + " " + std::to_string(one.keep_gathered) + " cp " +
         std::to_string(one.parallel.cp) + " tp " + std::to_string(one.parallel.tp) + " ep " +
         std::to_string(one.parallel.ep) + " outer " + std::to_string(one.outer);
}

/// The cases at each of four world sizes; those with ranks that share something where they divide
/// the world.
Case shared(Case one, const ParallelSection& parallel) {
  one.parallel = parallel;
  return one;
}

Case grouped(Case one, int64_t outer) {
  one.outer = outer;
  return one;
}

/// With SHERD_TEST_ALL alone, and what others have in common.
std::vector<Case> further_cases() {
  return {
      {"hybrid", "optim_grads_params", 1, 1, "bf16_o2", "planned", "selective"},
      {"llama", "optim_grads_params", 1, 2, "fp8_wgrad16"},
      {"llama", "optim_grads", 1, 1, "fp8_block"},
      {"llama", "optim_grads_params", 2, 1, "mxfp8", "planned", "selective"},
      {"vlm", "optim_grads", 1, 1, "fp32", "planned", "full"},
      // The thread that moves messages frees what was exchanged a moment after the exchange: now
      // and then the next unit has it.
      shared({"llama", "optim_grads_params", 1, 2}, {.tp = 2}),
      shared({"llama", "optim_grads", 1, 2, "bf16_o2"}, {.cp = 2}),
      shared({"llama", "optim_grads_params", 2, 1, "fp32", "planned", "full"}, {.cp = 2, .tp = 2}),
      grouped({"moe", "optim_grads_params", 1, 2}, 2),
      grouped(shared({"llama", "optim_grads", 1, 1, "bf16_o2"}, {.tp = 2}), 2),
      shared({"moe", "optim_grads_params", 1, 2}, {.cp = 2, .tp = 2, .ep = 2}),
      shared(
          {"moe", "optim_grads_params", 1, 1, "bf16_o2", "planned", "full"},
          {.cp = 2, .tp = 2, .ep = 4}),
      shared({"hybrid", "optim_grads", 1, 1}, {.cp = 2, .tp = 2, .ep = 4}),
  };
}

std::vector<Case> cases() {
  std::vector<Case> all{
      {"llama", "no_shard"},
      {"llama", "optim"},
      {"llama", "optim_grads"},
      {"llama", "optim_grads_params"},
      {"llama", "no_shard", 1, 3, "bf16_o2"},
      {"llama", "optim", 1, 3, "bf16_o2"},
      {"llama", "optim_grads", 0, 2, "bf16_o2"},
      {"llama", "optim_grads_params", 0, 3, "bf16_o2"},
      {"llama", "optim_grads_params", 2, 1, "bf16_o1"},
      {"llama", "optim_grads_params", 3, 2, "bf16_o3"},
      {"llama", "optim_grads_params", 1, 1, "fp32", "planned", "full"},
      {"llama", "optim_grads_params", 1, 2, "bf16_o2", "planned", "selective"},
      {"llama", "optim_grads_params", 1, 2, "fp32", "planned", "none", 2},
      {"tied", "optim_grads_params", 1, 2},
      {"tied", "optim_grads", 1, 1, "bf16_o2"},
      {"moe", "optim_grads_params", 1, 2},
      {"moe", "optim", 1, 1, "bf16_o2"},
      {"moe", "optim_grads_params", 1, 2, "bf16_o2", "planned", "selective"},
      {"moe", "optim_grads_params", 1, 1, "bf16_o1", "planned", "full"},
      {"hybrid", "optim_grads_params", 1, 2},
      {"hybrid", "optim_grads_params", 2, 1, "bf16_o2"},
      {"hybrid", "optim_grads", 0, 3},
      shared({"moe", "optim_grads_params", 1, 2}, {.ep = 2}),
      shared({"moe", "optim", 1, 1, "bf16_o2"}, {.tp = 2, .ep = 2}),
      shared({"moe", "optim_grads_params"}, {.cp = 3, .ep = 3}),
      shared({"hybrid", "optim_grads_params", 1, 2}, {.cp = 2, .ep = 4}),
      {"hybrid", "optim_grads_params", 1, 1, "fp32", "planned", "full"},
      {"llama", "optim_grads_params", 1, 2, "fp8", "planned", "full"},
      {"vlm", "optim_grads_params", 1, 2, "bf16_o2"},
      grouped({"llama", "optim_grads_params", 1, 2}, 2),
  };
  if (const char* every = std::getenv("SHERD_TEST_ALL"); every && std::string(every) == "1") {
    for (auto& one : further_cases()) all.push_back(std::move(one));
  }
  return all;
}

bool is_fp8(const Case& one) {
  return one.recipe.find("fp8") != std::string::npos;
}

Configuration configuration_of(const Case& one) {
  Configuration all;
  all.model.kind = one.model == "tied" ? "llama" : one.model;
  all.model.tie_embeddings = one.model == "tied";
  all.model.dim = 32;
  all.model.layers = 5;
  all.model.heads = 4;
  all.model.kv_heads = 2;
  all.model.vocab = 96;
  all.model.expert_ffn = 24;
  all.model.pattern = "M*ME-";
  all.model.ssm_state = 8;
  all.model.ssm_head_dim = 16;
  all.model.ssm_chunk = 8;
  all.data.seq = one.parallel.cp == 3 ? 18 : 16;
  all.model.experts = one.parallel.ep == 3 ? 6 : 4;
  all.parallel = one.parallel;
  all.data.micro_batches = one.micro_batches;
  all.shard.strategy = one.strategy;
  all.shard.prefetch = one.prefetch;
  all.shard.keep_gathered = one.keep_gathered;
  all.memory.kind = one.memory;
  all.precision.recipe = one.recipe;
  all.train.recompute = one.recompute;
  all.shard.outer = one.outer;
  if (one.outer > 1) all.shard.outer_strategy = "optim_grads";
  if (is_fp8(one)) {  // whose blocks are 128 elements wide
    all.model.dim = 128;
    all.model.layers = 2;
    all.model.ffn = 256;
  }
  if (one.model == "vlm") {
    all.model.layers = 2;
    all.model.image_size = 8;
    all.model.patch = 4;
    all.model.vision_dim = 16;
    all.model.vision_layers = 2;
    all.model.vision_heads = 2;
    all.model.image_token = 1;
  }
  all.device.kind = test_world().device().is_cuda() ? "cuda" : "cpu";
  all.model = resolved(all.model);
  return all;
}

/// As many images as the tokens can hold, at the same places in every run.
Batch with_images(Batch batch, const ModelSection& model) {
  if (model.kind != "vlm") return batch;
  const auto numbers = batch.tokens.options();
  const int64_t side = model.image_size / model.patch, patches = side * side;
  const int64_t images = batch.tokens.size(0) * (batch.tokens.size(1) / patches);
  batch.images =
      at::zeros({images, 3, model.image_size, model.image_size}, numbers.dtype(at::kFloat));
  batch.image_places = at::arange(images * patches, numbers);
  batch.image_patches = at::arange(images * patches, numbers);
  return batch;
}

/// `begun`: micro-batches of the step that were made before.
void step(
    LanguageModel& model, AdamW& optimizer, const Configuration& configuration, int64_t begun = 0) {
  const auto& data = configuration.data;
  const auto device = test_world().device();
  for (int64_t i = begun; i < data.micro_batches; ++i) {
    const auto numbers = at::TensorOptions().dtype(at::kLong).device(device);
    const auto tokens = at::randint(configuration.model.vocab, {data.batch, data.seq}, numbers);
    const auto batch = with_images(Batch{tokens, tokens}, configuration.model);
    const auto loss = call(model, model.part_of(batch));
    (loss / 16).backward();
  }
  optimizer.step();
}

struct Activations {
  std::vector<int64_t> saved;  ///< by unit: what its forward leaves for the backward
  int64_t peak = 0;
};

/// Measures the first micro-batch on CPU. The peak counts what it takes beyond the memory in use
/// before it, its tokens included.
Activations activations_of(
    LanguageModel& model, const AdamW& optimizer, const Configuration& configuration) {
  const auto numbers = at::TensorOptions().dtype(at::kLong);
  const int64_t before = wait_for_freed_tensors();
  restart_cpu_peak();
  Recording recording(model, [] { return cpu_memory().live; });
  auto tokens = at::zeros({configuration.data.batch, configuration.data.seq}, numbers);
  const auto batch = model.part_of(with_images(Batch{tokens, tokens.clone()}, configuration.model));
  tokens.reset();
  optimizer.scale(call(model, batch) * 0.5).backward();
  return {recording.finish().saved_activations, cpu_memory().peak - before};
}

/// Each recompute keeps the state of the CPU's random generator, on whatever device it runs.
int64_t generator_bytes() {
  const auto state = at::globalContext().defaultGenerator(c10::kCPU).get_state();
  return static_cast<int64_t>(state.nbytes());
}

TEST(PromiseTest, WhatIsPlannedWithoutMemoryIsWhatARunTakesToTheByte) {
  const auto& world = test_world();
  cpu_memory();  // counts from here on
  for (const auto& one : cases()) {
    SCOPED_TRACE(name_of(one));
    const auto& parallel = one.parallel;
    const int64_t group = world.size() / one.outer;
    if (world.size() % one.outer != 0 || group % (parallel.cp * parallel.tp) != 0 ||
        group % parallel.ep != 0)
      continue;
    const auto configuration = configuration_of(one);
    const auto planned = dry_run(configuration, world.size(), world.device().type(), world.rank());
    const auto model = model_of(configuration, mesh_of(configuration, world));
    AdamW optimizer(*model, optimizer_of(configuration, *model));
    EXPECT_GT(planned.saved_activations.back(), 0) << "of the root: of all units";
    EXPECT_GE(planned.activations, planned.saved_activations.back());
    const bool on_cpu = world.device().is_cpu();
    if (on_cpu) {
      const auto activations = activations_of(*model, optimizer, configuration);
      auto saved = planned.saved_activations;
      // A recompute keeps the generator's state, those of a vision tower's layers as well.
      const auto& model_section = configuration.model;
      const int64_t layers =
          model_section.layers + (model_section.kind == "vlm" ? model_section.vision_layers : 0);
      if (one.recompute == "full") saved.back() += layers * generator_bytes();
      // Ranks that share experts have as many rows as routers send them.
      if (parallel.ep == 1) {
        EXPECT_EQ(activations.saved, saved);
      }
      // Operations of a CPU take memory of their own while they run, which no plan knows.
      if (parallel.ep == 1) {
        EXPECT_GE(activations.peak, planned.activations);
      }
    }
    step(*model, optimizer, configuration, /*begun=*/on_cpu ? 1 : 0);
    step(*model, optimizer, configuration);
    const auto found = allocated_bytes(*model);
    EXPECT_EQ(found.model_weights, planned.bytes.model_weights);
    EXPECT_EQ(found.main_weights, planned.bytes.main_weights);
    EXPECT_EQ(found.main_gradients, planned.bytes.main_gradients);
    EXPECT_EQ(found.arena, planned.program.bytes().arena);
    EXPECT_EQ(found.control, planned.bytes.control);
    EXPECT_EQ(optimizer.allocated_bytes(), planned.optimizer);
    EXPECT_EQ(program(*model).fingerprint(), planned.program.fingerprint());
    EXPECT_EQ(program(*model).bytes().peak(), planned.program.bytes().peak());
  }
}

TEST(PromiseTest, EagerMemoryGivesTheSameLossesAndHoldsNothingBetweenSteps) {
  const auto losses = [](const std::string& memory) {
    auto configuration = configuration_of({"hybrid", "optim_grads_params", 1, 2, "fp32", memory});
    const auto model = model_of(configuration, mesh_of(configuration, test_world()));
    AdamW optimizer(*model, optimizer_of(configuration, *model));
    std::vector<double> result;
    const auto numbers = at::TensorOptions().dtype(at::kLong).device(test_world().device());
    const auto tokens = at::arange(16, numbers).view({1, 16}) + test_world().rank();
    for (int i = 0; i < 3; ++i) {
      for (int pass = 0; pass < 2; ++pass) {
        const auto loss = call(*model, Batch{tokens, tokens});
        result.push_back(loss.template item<double>());
        (loss / 16).backward();
      }
      optimizer.step();
    }
    const c10::NoGradGuard no_grad;  // validation between steps
    result.push_back(call(*model, Batch{tokens, tokens}).template item<double>());
    if (memory == "eager") {
      EXPECT_EQ(allocated_bytes(*model).arena, 0);
    }
    return result;
  };
  EXPECT_EQ(losses("eager"), losses("planned"));
}

/// Every model's arena is close to what it has in use at once.
TEST(PromiseTest, AnArenaTakesAtMostFivePercentMoreThanIsInUseAtOnce) {
  for (const auto& kind : {"llama", "tied", "moe", "hybrid", "vlm"}) {
    for (const int64_t depth : {1, 2}) {
      auto configuration = configuration_of({kind, "optim_grads_params", depth, 1, "bf16_o2"});
      configuration.model.dim = 256;
      configuration.model.layers = 12;
      configuration.model.ffn = 704;
      configuration.model.vocab = 8192;
      configuration.data.seq = 64;
      const auto planned = dry_run(configuration, 8, c10::DeviceType::CPU);
      const auto bytes = planned.program.bytes();
      EXPECT_LE(static_cast<double>(bytes.arena), 1.05 * static_cast<double>(bytes.bound))
          << kind << ", depth " << depth << ": " << bytes.arena << " and " << bytes.bound;
    }
  }
}

/// With eight equal layers and more: sharding over more ranks takes no more, but for padding.
TEST(PromiseTest, MoreShardingOrMoreRanksNeverTakeMore) {
  const std::vector<std::string> strategies{
      "no_shard", "optim", "optim_grads", "optim_grads_params"};
  int64_t before = std::numeric_limits<int64_t>::max();
  for (const auto& strategy : strategies) {
    int64_t fewer = std::numeric_limits<int64_t>::max();
    for (const int64_t ranks : {2, 3, 4, 8, 64}) {
      auto configuration = configuration_of({"llama", strategy, 1, 1, "bf16_o2"});
      configuration.model.layers = 8;
      configuration.model.dim = 64;
      const auto planned = dry_run(configuration, ranks, c10::DeviceType::CPU);
      const int64_t all = planned.program.bytes().peak() + planned.optimizer.moments;
      // Each group is padded by less than 64 elements a rank, in all its roles.
      const int64_t groups = 2 * std::ssize(planned.program.units());
      const int64_t padding = groups * 64 * (2 + 4 + 4 + 8 + 4);
      EXPECT_LE(all, fewer == std::numeric_limits<int64_t>::max() ? all : fewer + padding)
          << strategy << " on " << ranks;
      fewer = all;
      if (ranks == 8) {
        EXPECT_LE(all, before == std::numeric_limits<int64_t>::max() ? all : before + padding)
            << strategy;
        before = all;
      }
    }
  }
}

}  // namespace
}  // namespace sherd::testing
