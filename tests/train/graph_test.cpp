// SPDX-License-Identifier: Apache-2.0
// A step as a graph, and symmetric memory, give the losses that they give without.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <map>
#include <thread>

#include "configuration/optimizer.h"
#include "configuration/setup.h"
#include "forecast/graphed_steps.h"
#include "kernels/occupy.h"
#include "ranks/rank_world.h"
#include "shard/program_streams.h"
#include "shard/registry.h"
#include "shard/runtime/runtime.h"
#include "sherd/nn/recompute.h"
#include "sherd/optim/adamw.h"
#include "sherd/shard/diagnostics.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"
#include "sherd/shard/step_graph.h"

namespace sherd::testing {
namespace {

struct GraphCase {
  bool graph = false;
  bool symmetric = false;
  std::string kind = "llama";
  int64_t outer = 1;
  std::string outer_strategy = "no_shard";
  std::string recompute = "none";
  bool per_token = false;
  std::string recipe = "bf16_o2";
};

Configuration graphed_configuration(const GraphCase& way) {
  Configuration all;
  all.model.kind = way.kind;
  // What fp8 multiplies has blocks of 128.
  const bool fp8 = way.recipe.find("fp8") != std::string::npos;
  all.model.dim = fp8 ? 128 : 64;
  if (fp8) all.model.ffn = 256;
  all.model.layers = 4;
  all.model.heads = 4;
  all.model.kv_heads = 2;
  all.model.vocab = 128;
  all.data.seq = 32;
  all.data.micro_batches = 2;
  all.shard.outer = way.outer;
  all.shard.outer_strategy = way.outer_strategy;
  all.memory.symmetric = way.symmetric;
  all.precision.recipe = way.recipe;
  all.train.recompute = way.recompute;
  if (way.per_token) all.train.loss = "per_token";
  all.optim.max_norm = 1.0;
  all.model = resolved(all.model);
  return all;
}

/// The losses of some steps, whose learning rate changes, and the weights' norm after them.
std::vector<double> losses(const GraphCase& way, int64_t steps) {
  const auto configuration = graphed_configuration(way);
  const auto& world = test_world();
  const auto model = model_of(configuration, mesh_of(configuration, world));
  AdamW optimizer(*model, optimizer_of(configuration, *model));
  std::optional<GraphedSteps> graph;
  if (way.graph) graph.emplace(*model);
  if (way.symmetric) {
    EXPECT_NE(symmetric_report(*model), "");
  }
  std::vector<double> result;
  const auto numbers = at::TensorOptions().dtype(at::kLong).device(world.device());
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<Batch> batches;
    for (int64_t i = 0; i < 2; ++i) {
      const auto row = (at::arange(33, numbers) * (step + 3) + i + 7 * world.rank()) % 128;
      batches.push_back({row.narrow(0, 0, 32).view({1, 32}), row.narrow(0, 1, 32).view({1, 32})});
    }
    optimizer.set_lr(1e-3 * static_cast<double>(1 + step % 5));
    const auto make = [&](const std::vector<Batch>& given, at::Tensor& sum) {
      for (const auto& batch : given) {
        const auto loss = call(*model, batch);
        sum += loss.detach();
        (way.per_token ? loss : loss / 64).backward();
      }
      optimizer.step(way.per_token ? StepOptions{.tokens = 40 + 3 * step} : StepOptions{});
    };
    if (graph && way.per_token) optimizer.set_tokens(40 + 3 * step);
    at::Tensor sum;
    if (graph) {
      sum = graph->run(batches, make);
    } else {
      sum = at::zeros({1}, numbers.dtype(at::kDouble));
      make(batches, sum);
    }
    result.push_back(sum.item<double>());
    result.push_back(optimizer.gradient_norm());
  }
  return result;
}

class GraphTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test_world().device().is_cuda()) GTEST_SKIP() << "CUDA graphs need a GPU";
  }
};

constexpr int64_t kSteps = 20;

TEST_F(GraphTest, ReplaysGiveTheLossesOfEagerStepsBitForBit) {
  for (const char* recompute : {"none", "full", "selective"}) {
    EXPECT_EQ(
        losses({.graph = true, .recompute = recompute}, kSteps),
        losses({.recompute = recompute}, kSteps))
        << recompute;
  }
}

TEST_F(GraphTest, ReplaysDivideByTheTokensOfTheirOwnStep) {
  EXPECT_EQ(losses({.graph = true, .per_token = true}, 8), losses({.per_token = true}, 8));
}

/// Drops half of its input, the same half in the forward and in the recompute.
struct DropImpl : torch::nn::Module {
  DropImpl() { linear = register_module("linear", torch::nn::Linear(64, 64)); }
  at::Tensor forward(const at::Tensor& x) {
    const auto drop = [this](const at::Tensor& y) {
      return at::dropout(linear(y).tanh(), 0.5, /*train=*/true);
    };
    auto y = at::rand_like(x) + x;  // random numbers outside a recompute as well
    for (int i = 0; i < 2; ++i) y = recompute(drop, y);
    return y.square().mean();
  }
  torch::nn::Linear linear{nullptr};
};
SHERD_MODULE(Drop);

/// A model, its optimizer and its step.
template <class Model>
struct RunOf {
  RunOf() {
    model->to(test_world().device());
    fully_shard(model, {.mesh = Mesh(test_world(), {{"dp", test_world().size()}})});
    optimizer.emplace(model);
    graph.emplace(*model);
    torch::manual_seed(6 + test_world().rank());
  }
  void step() {
    model(at::ones({8, 64}, test_world().device())).backward();
    optimizer->step();
  }
  void step_on_stream() {
    graph->on_stream([this] { step(); });
  }
  std::vector<at::Tensor> weights() const {
    std::vector<at::Tensor> result;
    for (const auto& one : parameters(model)) result.push_back(one.clone());
    return result;
  }
  static Model equal_model() {
    torch::manual_seed(5);
    return {};
  }
  Model model = equal_model();
  std::optional<AdamW> optimizer;
  std::optional<StepGraph> graph;
};
using DropRun = RunOf<Drop>;

void expect_equal(const std::vector<at::Tensor>& one, const std::vector<at::Tensor>& other) {
  ASSERT_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], other[i])) << i;
}

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

TEST_F(GraphTest, RandomNumbersInARecomputeAreThoseOfTheForward) {
  DropRun plain;
  for (int i = 0; i < 8; ++i) plain.step_on_stream();
  DropRun graphed;
  for (int i = 0; i < 2; ++i) graphed.step_on_stream();
  graphed.graph->capture([&] { graphed.step(); });
  for (int i = 2; i < 8; ++i) graphed.graph->replay();
  expect_equal(plain.weights(), graphed.weights());
}

/// A recompute as other libraries write it: with a leaf on the CPU. Nothing takes the gradient that
/// it returns for `x`. Autograd frees that tensor last, so the thread that runs this node is the
/// one that ends the backward.
struct OthersRecompute : torch::autograd::Function<OthersRecompute> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& /*leaf*/,
      const at::Tensor& x,
      torch::nn::LinearImpl* linear) {
    context->saved_data["linear"] = reinterpret_cast<int64_t>(linear);
    context->save_for_backward({x});
    return linear->forward(x);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    auto* linear = reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["linear"].toInt());
    const c10::AutoGradMode grad(true);
    torch::autograd::backward({linear->forward(context->get_saved_variables()[0])}, gradients);
    static float value = 0;
    const auto free_slowly = [](void*) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    };
    return {{}, at::from_blob(&value, {1}, free_slowly), {}};
  }
};

struct OthersImpl : torch::nn::Module {
  OthersImpl() { linear = register_module("linear", torch::nn::Linear(64, 64)); }
  at::Tensor forward(const at::Tensor& x) {
    const auto leaf = at::empty({0}).set_requires_grad(true);
    return OthersRecompute::apply(leaf, x, linear.get()).square().mean();
  }
  torch::nn::Linear linear{nullptr};
};
SHERD_MODULE(Others);

TEST_F(GraphTest, AnUpdateOnAStreamWaitsForTheReductions) {
  RunOf<Others> outside;
  for (int i = 0; i < 3; ++i) outside.step();
  RunOf<Others> inside;
  inside.step_on_stream();
  auto clock = at::zeros({1}, at::TensorOptions().dtype(at::kLong).device(test_world().device()));
  const auto runtime = Runtime::of(*find_unit(inside.model.get()));
  runtime->streams().set_disturbance([&](Stream stream, Communicator::OnStream on) {
    if (stream != Stream::reduce) return;
    note_time(clock, *on);
    occupy_until(clock, /*seconds=*/5e-3, 1, *on);
  });
  for (int i = 1; i < 3; ++i) inside.step_on_stream();
  expect_equal(outside.weights(), inside.weights());
  runtime->streams().set_disturbance({});
}

TEST_F(GraphTest, ABackwardThatAutogradsThreadEndsIsPartOfTheCapture) {
  RunOf<Others> plain;
  for (int i = 0; i < 5; ++i) plain.step_on_stream();
  RunOf<Others> graphed;
  for (int i = 0; i < 2; ++i) graphed.step_on_stream();
  graphed.graph->capture([&] { graphed.step(); });
  for (int i = 2; i < 5; ++i) graphed.graph->replay();
  expect_equal(plain.weights(), graphed.weights());
}

TEST_F(GraphTest, TheLeafOfARecomputeIsOnTheStreamOfItsCall) {
  DropRun run;
  run.graph->on_stream([&] {
    const auto twice = [](const at::Tensor& x) { return x * 2; };
    const auto output = recompute(twice, at::ones({4}, test_world().device()));
    const auto& leaf = output.grad_fn()->next_edge(0).function;
    ASSERT_TRUE(leaf);
    EXPECT_EQ(leaf->stream(), std::optional(c10::cuda::getCurrentCUDAStream().unwrap()));
  });
}

TEST_F(GraphTest, AReplayAfterAParameterWasFrozenIsRefusedByName) {
  DropRun run;
  for (int i = 0; i < 2; ++i) run.step_on_stream();
  run.graph->capture([&] { run.step(); });
  run.graph->replay();
  run.model->linear->bias.set_requires_grad(false);
  const auto text = error_of([&] { run.graph->replay(); });
  EXPECT_NE(text.find("'linear.bias' was frozen since"), std::string::npos) << text;
  const auto early = error_of([&] { run.graph->capture([&] { run.step(); }); });
  EXPECT_NE(early.find("run one outside the graph first"), std::string::npos) << early;
  run.step_on_stream();
  run.graph->capture([&] { run.step(); });
  const auto before = run.weights();
  run.graph->replay();
  const auto after = run.weights();
  size_t changed = 0;
  for (size_t i = 0; i < before.size(); ++i) changed += !at::equal(before[i], after[i]);
  EXPECT_EQ(changed, 1u) << "the weight alone";
}

TEST_F(GraphTest, AReplayAfterAFailedPassRecoversFirst) {
  DropRun run;
  for (int i = 0; i < 2; ++i) run.step_on_stream();
  run.graph->capture([&] { run.step(); });
  const auto& state = Runtime::of(*find_unit(run.model.get()))->state();
  {
    const c10::NoGradGuard validation;
    const auto wrong_shape = at::ones({1, 3}, test_world().device());
    EXPECT_NE(error_of([&] { run.model(wrong_shape); }), "nothing was thrown");
  }
  EXPECT_TRUE(state.has_failed());
  run.graph->replay();
  EXPECT_FALSE(state.has_failed());
}

TEST_F(GraphTest, AReplayWithoutItsTokensIsRefused) {
  auto configuration = graphed_configuration({.per_token = true});
  configuration.data.micro_batches = 1;
  const auto model = model_of(configuration, mesh_of(configuration, test_world()));
  AdamW optimizer(*model, optimizer_of(configuration, *model));
  const auto numbers = at::TensorOptions().dtype(at::kLong).device(test_world().device());
  const Batch batch{at::ones({1, 32}, numbers), at::ones({1, 32}, numbers)};
  StepGraph graph(*model);
  const auto step = [&] {
    call(*model, batch).backward();
    optimizer.step({.tokens = 32});
  };
  for (int i = 0; i < 2; ++i) graph.on_stream(step);
  graph.capture(step);
  const auto text = error_of([&] { graph.replay(); });
  EXPECT_NE(text.find("optimizer.set_tokens"), std::string::npos) << text;
  optimizer.set_tokens(32);
  graph.replay();
  EXPECT_GT(optimizer.gradient_norm(), 0);
}

TEST_F(GraphTest, AKernelThatThrowsLeavesTheCurrentStreamAsItWas) {
  ProgramStreams streams(test_world().device(), 1);
  Instruction instruction;
  instruction.stream = Stream::reduce;
  const auto before = c10::cuda::getCurrentCUDAStream();
  EXPECT_THROW(
      streams.issue(
          instruction, ProgramStreams::Kind::kernel, /*flight_entry=*/0,
          [&](Communicator::OnStream stream) -> Work {
            EXPECT_EQ(c10::cuda::getCurrentCUDAStream().unwrap(), *stream);
            throw std::runtime_error("a kernel");
          }),
      std::runtime_error);
  EXPECT_EQ(c10::cuda::getCurrentCUDAStream(), before);
}

TEST_F(GraphTest, RecipesOfFp8CanBeCaptured) {
  std::map<std::string, std::vector<double>> eager;
  for (const char* recipe : {"bf16_o2", "fp8", "fp8_wgrad16", "fp8_block", "mxfp8"}) {
    eager[recipe] = losses({.recipe = recipe}, kSteps);
    EXPECT_EQ(losses({.graph = true, .recipe = recipe}, kSteps), eager[recipe]) << recipe;
  }
  EXPECT_NE(eager["fp8"], eager["fp8_block"]);
  EXPECT_EQ(losses({.symmetric = true, .recipe = "fp8"}, kSteps), eager["fp8"]);
  EXPECT_EQ(losses({.graph = true, .symmetric = true, .recipe = "fp8"}, kSteps), eager["fp8"]);
  for (const char* recompute : {"full", "selective"}) {
    EXPECT_EQ(
        losses({.graph = true, .recompute = recompute, .recipe = "fp8"}, kSteps),
        losses({.recompute = recompute, .recipe = "fp8"}, kSteps))
        << recompute;
  }
}

TEST_F(GraphTest, ModelsWithExpertsAndMambaCanBeCaptured) {
  for (const char* kind : {"moe", "hybrid"}) {
    EXPECT_EQ(losses({.graph = true, .kind = kind}, 6), losses({.kind = kind}, 6)) << kind;
  }
}

TEST_F(GraphTest, SymmetricMemoryGivesTheSameLossesWithAndWithoutAGraph) {
  const auto plain = losses({}, kSteps);
  EXPECT_EQ(losses({.symmetric = true}, kSteps), plain);
  EXPECT_EQ(losses({.graph = true, .symmetric = true}, kSteps), plain);
}

TEST_F(GraphTest, TwoAxesCanBeCaptured) {
  const int64_t ranks = test_world().size();
  if (ranks % 2 != 0) GTEST_SKIP() << "one rank has one axis";
  for (const char* outer : {"no_shard", "optim", "optim_grads_params"}) {
    for (const int64_t groups : {int64_t{2}, ranks}) {
      EXPECT_EQ(
          losses({.graph = true, .outer = groups, .outer_strategy = outer}, 8),
          losses({.outer = groups, .outer_strategy = outer}, 8))
          << outer;
    }
  }
}

TEST_F(GraphTest, WhatCannotBeCapturedIsRefusedWithTheReason) {
  auto configuration = graphed_configuration({});
  configuration.memory.kind = "eager";
  const auto model = model_of(configuration, mesh_of(configuration, test_world()));
  try {
    const StepGraph graph(*model);
    FAIL() << "eager memory was captured";
  } catch (const c10::ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("its memory is eager"), std::string::npos);
  }
}

}  // namespace
}  // namespace sherd::testing
