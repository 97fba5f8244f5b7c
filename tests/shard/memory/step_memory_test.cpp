// SPDX-License-Identifier: Apache-2.0
// What a step allocates: what autograd does, and nothing else.
#include "shard/counting_allocator.h"
#include "shard/emulated_world.h"
#include "shard/stack.h"

namespace sherd::testing {
namespace {

class StepMemoryTest : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    use_emulated_world(GetParam());
    cpu_memory();
  }
};

struct Usage {
  int64_t peak = 0;  ///< beyond what was live at the beginning
  int64_t left = 0;
  int64_t allocations = 0;
  int64_t allocated = 0;
  friend bool operator==(const Usage&, const Usage&) = default;
};

std::ostream& operator<<(std::ostream& out, const Usage& usage) {
  return out << "peak " << usage.peak << ", left " << usage.left << ", " << usage.allocations
             << " allocations of " << usage.allocated << " bytes";
}

template <class Run>
Usage usage_of(Run run) {
  const auto before = restart_cpu_peak();
  run();
  const auto after = cpu_memory();
  return {after.peak - before.live, after.live - before.live, after.allocations, after.allocated};
}

struct Tokens {
  at::Tensor input = torch::arange(12).view({2, 6});
  at::Tensor target = torch::arange(3, 15).view({2, 6});
};

/// A transformer of torch's own layers, which write no gradient themselves.
Transformer make_transformer(bool recompute) {
  torch::manual_seed(3);
  return Transformer(ModelOptions{recompute}, /*layers=*/3);
}

/// One forward and backward of the plain model that already has gradients: what autograd itself
/// takes, since a gradient is then a tensor of its own until it has been added to the old one.
Usage usage_of_plain(const Tokens& tokens, bool recompute) {
  auto model = make_transformer(recompute);
  for (auto& parameter : model->parameters()) {
    parameter.mutable_grad() = torch::zeros_like(parameter);
  }
  const auto step = [&] { model(tokens.input, tokens.target).backward(); };
  step();
  return usage_of(step);
}

/// Gathers go into slots, gradients from autograd's tensors into the buffer, reductions are in
/// place: so nothing is allocated in a step but by autograd, and the peak is that of the plain
/// model, with the planned bytes in place of its weights and gradients.
TEST_P(StepMemoryTest, APassAllocatesExactlyWhatAutogradDoes) {
  const Tokens tokens;
  for (const bool recompute : {false, true}) {
    const auto plain = usage_of_plain(tokens, recompute);
    EXPECT_EQ(plain.left, 0);
    EXPECT_GT(plain.allocations, 0);
    for (const auto& way : all_ways()) {
      SCOPED_TRACE(c10::str(way.name, recompute ? ", recompute" : ""));
      auto model = make_transformer(recompute);
      shard_stack(model, {.mesh = mesh_for(way), .placement = way.placement});
      micro_batches(model, 3);
      auto optimizer = plain_sgd(*model);
      for (int64_t step = 0; step < 3; ++step) {
        for (int64_t micro_batch = 0; micro_batch < 3; ++micro_batch) {
          const auto usage = usage_of([&] { model(tokens.input, tokens.target).backward(); });
          // The first pass of all finds out the order, and may lay out the arena anew.
          if (step == 0) continue;
          EXPECT_EQ(usage, plain) << "micro-batch " << micro_batch;
        }
        optimizer.step();
        EXPECT_EQ(usage_of([&] { publish(model); }), Usage{});
      }
    }
  }
}

TEST_P(StepMemoryTest, AValidationPassAllocatesExactlyWhatAutogradDoes) {
  const torch::NoGradGuard no_grad;
  const Tokens tokens;
  auto reference = make_transformer(false);
  const auto plain = usage_of([&] { reference(tokens.input, tokens.target); });
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    auto model = make_transformer(false);
    shard_stack(model, {.mesh = mesh_for(way), .placement = way.placement});
    program(model);
    for (int64_t pass = 0; pass < 2; ++pass) {
      EXPECT_EQ(usage_of([&] { model(tokens.input, tokens.target); }), plain);
    }
  }
}

/// A Linear of Sherd writes its weight's gradient into the buffer, where torch's has a tensor more.
TEST_P(StepMemoryTest, AFusedWeightGradientTakesLessThanAutograd) {
  const auto x = random_input(0, 0, 0, {4, 7});
  const auto target = random_input(0, 1, 0, {4, 3});
  Stack reference(StackImpl::Recompute::nowhere, 3);
  for (auto& parameter : reference->parameters()) {
    parameter.mutable_grad() = torch::zeros_like(parameter);
  }
  const auto plain = usage_of([&] { reference(x, target).backward(); });
  int64_t fused = 0;
  for (const auto& block : reference->blocks) {
    fused += static_cast<int64_t>(block->down->weight.nbytes());
  }
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    Stack model(StackImpl::Recompute::nowhere, 3);
    shard_stack(model, {.mesh = mesh_for(way), .placement = way.placement});
    auto optimizer = plain_sgd(*model);
    for (int64_t step = 0; step < 2; ++step) {
      const auto usage = usage_of([&] { model(x, target).backward(); });
      EXPECT_EQ(usage.left, 0);
      EXPECT_LE(usage.peak, plain.peak);
      EXPECT_EQ(usage.allocations, plain.allocations - std::ssize(reference->blocks));
      EXPECT_EQ(usage.allocated, plain.allocated - fused);
      sherd::step(model, optimizer);
    }
  }
}

TEST_P(StepMemoryTest, LiveBytesAreTheSameAfterEveryStep) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    auto model = make_transformer(false);
    shard_stack(model, {.mesh = mesh_for(way), .placement = way.placement});
    micro_batches(model, 2);
    auto optimizer = make_optimizer(Optimizer::adamw, parameters(model));
    int64_t live = 0;
    for (int64_t step = 0; step < 4; ++step) {
      for (int64_t micro_batch = 0; micro_batch < 2; ++micro_batch) {
        const Tokens tokens;
        model(tokens.input, tokens.target).backward();
      }
      sherd::step(model, *optimizer);
      {
        const torch::NoGradGuard no_grad;
        const Tokens tokens;
        model(tokens.input, tokens.target);
      }
      if (step == 0) live = cpu_memory().live;  // with the optimizer's states
      EXPECT_EQ(cpu_memory().live, live) << "after step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, StepMemoryTest, ::testing::Values(1, 2, 4, 8));

}  // namespace
}  // namespace sherd::testing
