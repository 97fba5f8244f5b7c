// SPDX-License-Identifier: Apache-2.0
// Bytes: what the program promises against what the CPU's allocator sees.
#include "shard/counting_allocator.h"
#include "shard/emulated_world.h"
#include "shard/stack.h"

namespace sherd::testing {
namespace {

using Recompute = StackImpl::Recompute;

/// What Sherd takes beyond the program's bytes: the records by which ranks agree, four numbers of
/// this rank and of each.
int64_t control_bytes() {
  return 4 * static_cast<int64_t>(sizeof(int64_t)) * (1 + test_world().size());
}

int64_t parameter_bytes(const torch::nn::Module& module) {
  int64_t bytes = 0;
  for (const auto& parameter : module.parameters()) {
    bytes += static_cast<int64_t>(parameter.nbytes());
  }
  return bytes;
}

/// Without states, so that what an update leaves behind is Sherd's alone.
torch::optim::SGD plain_sgd(const torch::nn::Module& model) {
  return torch::optim::SGD(parameters(model), torch::optim::SGDOptions(0.01));
}

struct Setting {
  std::string name;
  Dtypes dtypes{};
  c10::ScalarType model = torch::kFloat;
  bool frozen_block = false;
  bool keep_gathered = false;
};

const std::vector<Setting>& settings() {
  static const Dtypes wide{
      .main = torch::kFloat, .gradient = torch::kFloat, .reduce = torch::kFloat};
  static const Dtypes narrow_wire{
      .main = torch::kFloat, .gradient = torch::kFloat, .reduce = torch::kBFloat16};
  static const std::vector<Setting> all{
      {.name = "fp32"},
      {.name = "a frozen block", .frozen_block = true},
      {.name = "kept gathered", .keep_gathered = true},
      {.name = "bf16 with fp32 beside it", .dtypes = wide, .model = torch::kBFloat16},
      {.name = "bf16 on the wire too", .dtypes = narrow_wire, .model = torch::kBFloat16}};
  return all;
}

Stack make_stack(const Way& way, Recompute recompute, const Setting& setting) {
  Stack model(recompute, /*count=*/3);
  model->to(setting.model);
  if (setting.frozen_block) {
    for (auto& parameter : model->blocks[1]->parameters()) parameter.set_requires_grad(false);
  }
  ShardOptions options{.mesh = mesh_for(way), .placement = way.placement};
  options.dtypes = setting.dtypes;
  options.keep_gathered = setting.keep_gathered;
  shard_stack(model, options);
  return model;
}

class MemoryTest : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    use_emulated_world(GetParam());
    cpu_memory();
  }

  template <class Run>
  void for_every_way(Run run) {
    for (const auto& way : all_ways()) {
      for (const auto& [name, recompute] : all_recomputes()) {
        for (const auto& setting : settings()) {
          SCOPED_TRACE(c10::str(way.name, ", ", name, ", ", setting.name));
          run(way, recompute, setting);
        }
      }
    }
  }
};

TEST_P(MemoryTest, HoldsWhatItPlansBeforeAndAfterSteps) {
  for_every_way([](const Way& way, Recompute recompute, const Setting& setting) {
    auto model = make_stack(way, recompute, setting);
    auto optimizer = plain_sgd(*model);
    EXPECT_EQ(allocated_bytes(model), program(model).bytes().peak());
    for (int64_t step = 0; step < 3; ++step) {
      const auto x = random_input(step, 0, 0, {4, 7}).to(setting.model);
      const auto target = random_input(step, 1, 0, {4, 3}).to(setting.model);
      model(x, target).backward();
      sherd::step(model, optimizer);
    }
    EXPECT_EQ(allocated_bytes(model), program(model).bytes().peak());
  });
}

TEST_P(MemoryTest, TheAllocatorSeesThePlannedBytesAndTheControlRecordsAndNothingElse) {
  for_every_way([](const Way& way, Recompute recompute, const Setting& setting) {
    const auto x = random_input(0, 0, 0, {4, 7}).to(setting.model);
    const auto target = random_input(0, 1, 0, {4, 3}).to(setting.model);
    const int64_t before = cpu_memory().live;
    {
      auto model = make_stack(way, recompute, setting);
      auto optimizer = plain_sgd(*model);
      for (int64_t step = 0; step < 3; ++step) {
        model(x, target).backward();
        sherd::step(model, optimizer);
        EXPECT_EQ(cpu_memory().live - before, program(model).bytes().peak() + control_bytes())
            << "after step " << step;
      }
    }
    EXPECT_EQ(cpu_memory().live, before) << "the model is gone";
  });
}

/// Shards unit by unit: beside what is there, only the parts of the unit that is being sharded.
TEST_P(MemoryTest, ShardingTakesOneUnitsPartsBeyondTheModel) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    const int64_t before = cpu_memory().live;
    Stack model(Recompute::nowhere, /*count=*/3);
    int64_t own = parameter_bytes(*model);
    std::vector<int64_t> whole;
    for (const auto& block : model->blocks) {
      whole.push_back(parameter_bytes(*block));
      own -= whole.back();
    }
    whole.push_back(own);
    restart_cpu_peak();
    const ShardOptions options{.mesh = mesh_for(way), .placement = way.placement};
    shard_stack(model, options);
    const int64_t peak = cpu_memory().peak;
    const int64_t after = cpu_memory().live;
    int64_t live = before + parameter_bytes(*model);
    int64_t expected = live;
    const auto& units = program(model).units();
    ASSERT_EQ(units.size(), whole.size());
    for (size_t i = 0; i < units.size(); ++i) {
      const auto& group = units[i].groups.front();
      const auto part = part_of(group.placement.spreads(Role::parameter), group.axis_sizes, {0, 0});
      const int64_t held = group.elements / part.count * group.bytes.model;
      expected = std::max(expected, live + held);
      live += held - whole[i];
    }
    EXPECT_EQ(peak, expected);
    EXPECT_EQ(after, live);
  }
}

// ---- within a step ------------------------------------------------------------------------------

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
TEST_P(MemoryTest, APassAllocatesExactlyWhatAutogradDoes) {
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

TEST_P(MemoryTest, AValidationPassAllocatesExactlyWhatAutogradDoes) {
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
TEST_P(MemoryTest, AFusedWeightGradientTakesLessThanAutograd) {
  const auto x = random_input(0, 0, 0, {4, 7});
  const auto target = random_input(0, 1, 0, {4, 3});
  Stack reference(Recompute::nowhere, 3);
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
    auto model = make_stack(way, Recompute::nowhere, settings().front());
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

TEST_P(MemoryTest, LiveBytesAreTheSameAfterEveryStep) {
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

/// The first pass finds another order than the program's, here with units that stay gathered
/// longer: the arena is laid out anew, but there are never two of them.
TEST_P(MemoryTest, LearningTheOrderHoldsOneArenaAtATime) {
  const auto x = random_input(0, 0, 0, {4, 7});
  const auto target = random_input(0, 1, 0, {4, 3});
  const Way way{"optim_grads_params", Placement(Strategy::optim_grads_params)};
  Stack model(Recompute::around_all, /*count=*/6, /*dim=*/64);
  shard_stack(model, {.mesh = mesh_for(way), .placement = way.placement});
  const auto first = program(model).bytes();
  const int64_t rest = cpu_memory().live - first.arena;
  restart_cpu_peak();
  auto loss = model(x, target);
  const int64_t peak = cpu_memory().peak;
  const auto second = program(model).bytes();
  ASSERT_GT(second.arena, first.arena);
  // What autograd keeps for the backward is far less than the smaller arena.
  const int64_t activations = cpu_memory().live - rest - second.arena;
  ASSERT_LT(activations, first.arena / 4);
  EXPECT_LE(peak, rest + second.arena + first.arena / 2);
}

INSTANTIATE_TEST_SUITE_P(Ranks, MemoryTest, ::testing::Values(1, 2, 4, 8));

// ---- across strategies --------------------------------------------------------------------------

int64_t planned_peak(Strategy strategy) {
  Stack model(Recompute::nowhere, /*count=*/8, /*dim=*/64);
  const Way way{"", Placement(strategy)};
  shard_stack(model, {.mesh = mesh_for(way), .placement = way.placement});
  return program(model).bytes().peak();
}

TEST(MemoryOfStrategies, ShardingMoreNeverTakesMore) {
  using enum Strategy;
  for (const int64_t ranks : {2, 4, 8}) {
    SCOPED_TRACE(ranks);
    use_emulated_world(ranks);
    EXPECT_LE(planned_peak(optim_grads_params), planned_peak(optim_grads));
    EXPECT_LE(planned_peak(optim_grads), planned_peak(optim));
    EXPECT_LE(planned_peak(optim), planned_peak(no_shard));
  }
}

}  // namespace
}  // namespace sherd::testing
