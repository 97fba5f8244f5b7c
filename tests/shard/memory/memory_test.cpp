// SPDX-License-Identifier: Apache-2.0
// Bytes: what the program promises against what the CPU's allocator sees.
#include "comm/emulated/recorded_calls.h"
#include "shard/counting_allocator.h"
#include "shard/emulated_world.h"
#include "shard/rank_records.h"
#include "shard/stack.h"
#include "sherd/shard/diagnostics.h"

namespace sherd::testing {
namespace {

using Recompute = StackImpl::Recompute;

/// What Sherd takes beyond the program's bytes: the record by which ranks agree, eleven numbers in
/// a world of any size; a number of each weight, to see that it was written; and what is known of
/// its gradient, four numbers before the reduction, four after, and what the host was told of them.
int64_t control_bytes(const torch::nn::Module& model) {
  const auto weights = named_parameters(model);
  const auto seen = std::ssize(parameters(model));
  return static_cast<int64_t>(sizeof(int64_t)) * (11 + seen + 14 * std::ssize(weights));
}

/// The bytes that the program knows.
int64_t without_control(ModuleRef model) {
  const auto bytes = allocated_bytes(model);
  return bytes.sum() - bytes.control;
}

int64_t parameter_bytes(const torch::nn::Module& module) {
  int64_t bytes = 0;
  for (const auto& parameter : module.parameters()) {
    bytes += static_cast<int64_t>(parameter.nbytes());
  }
  return bytes;
}

struct MemorySetting {
  std::string name;
  Precision precision{};
  c10::ScalarType model = torch::kFloat;
  bool frozen_block = false;
  bool keep_gathered = false;
};

const std::vector<MemorySetting>& settings() {
  static const Precision wide{
      .main = torch::kFloat, .gradient = torch::kFloat, .reduce = torch::kFloat};
  static const Precision narrow_wire{
      .main = torch::kFloat, .gradient = torch::kFloat, .reduce = torch::kBFloat16};
  static const std::vector<MemorySetting> all{
      {.name = "fp32"},
      {.name = "a frozen block", .frozen_block = true},
      {.name = "kept gathered", .keep_gathered = true},
      {.name = "bf16 with fp32 beside it", .precision = wide, .model = torch::kBFloat16},
      {.name = "bf16 on the wire too", .precision = narrow_wire, .model = torch::kBFloat16}};
  return all;
}

Stack make_stack(const ShardingCase& way, Recompute recompute, const MemorySetting& setting) {
  Stack model(recompute, /*count=*/3);
  model->to(setting.model);
  if (setting.frozen_block) {
    for (auto& parameter : model->blocks[1]->parameters()) parameter.set_requires_grad(false);
  }
  UnitOptions options{.mesh = mesh_for(way), .placement = way.placement};
  options.precision = setting.precision;
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
  for_every_way([](const ShardingCase& way, Recompute recompute, const MemorySetting& setting) {
    auto model = make_stack(way, recompute, setting);
    auto optimizer = plain_sgd(*model);
    EXPECT_EQ(without_control(model), program(model).bytes().peak());
    for (int64_t step = 0; step < 3; ++step) {
      const auto x = random_input(step, 0, 0, {4, 7}).to(setting.model);
      const auto target = random_input(step, 1, 0, {4, 3}).to(setting.model);
      model(x, target).backward();
      sherd::step(model, optimizer);
    }
    EXPECT_EQ(without_control(model), program(model).bytes().peak());
  });
}

TEST_P(MemoryTest, TheAllocatorSeesThePlannedBytesAndTheControlRecordsAndNothingElse) {
  for_every_way([](const ShardingCase& way, Recompute recompute, const MemorySetting& setting) {
    const auto x = random_input(0, 0, 0, {4, 7}).to(setting.model);
    const auto target = random_input(0, 1, 0, {4, 3}).to(setting.model);
    const int64_t before = cpu_memory().live;
    {
      auto model = make_stack(way, recompute, setting);
      auto optimizer = plain_sgd(*model);
      for (int64_t step = 0; step < 3; ++step) {
        model(x, target).backward();
        sherd::step(model, optimizer);
        EXPECT_EQ(cpu_memory().live - before, program(model).bytes().peak() + control_bytes(*model))
            << "after step " << step;
      }
    }
    EXPECT_EQ(cpu_memory().live, before) << "the model is gone";
  });
}

/// Sharding goes unit by unit: it allocates only the shards of the unit at hand.
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
    const UnitOptions options{.mesh = mesh_for(way), .placement = way.placement};
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

/// The first pass finds another order than the program's, here with units that stay gathered
/// longer: the arena gets a new layout, but there are never two of them.
TEST_P(MemoryTest, LearningTheOrderHoldsOneArenaAtATime) {
  const auto x = random_input(0, 0, 0, {4, 7});
  const auto target = random_input(0, 1, 0, {4, 3});
  const ShardingCase way{"optim_grads_params", Placement(Strategy::optim_grads_params)};
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

/// What ranks tell each other in a step and its findings: the memory that stays, and the bytes of
/// all collectives on their own communicator.
std::pair<int64_t, int64_t> control_in_world_of(int64_t size) {
  use_emulated_world(size);
  auto model = make_stack(all_ways().front(), Recompute::nowhere, {});
  auto& world = test_world().communicator();
  recorded_calls(world, /*forget=*/true);
  model(torch::ones({4, 7}), torch::zeros({4, 3})).backward();
  publish(model);
  EXPECT_TRUE(findings(model).empty());
  int64_t bytes = 0;
  for (const auto& call : recorded_calls(world, /*forget=*/true)) {
    if (call.communicator == "control") bytes += call.bytes;
  }
  return {allocated_bytes(*model).control, bytes};
}

TEST(ControlMemory, DoesNotGrowWithTheWorld) {
  const auto small = control_in_world_of(4);
  const auto large = control_in_world_of(16'384);
  EXPECT_GT(small.second, 0);
  EXPECT_EQ(small.second, large.second);
  EXPECT_LE(large.first, small.first);  // less where a rank has no element of a weight
}

/// Returns the bytes of all collectives, and the peak of memory, that it takes to send one rank's
/// text (such as an error message) to all ranks.
std::pair<int64_t, int64_t> text_in_world_of(int64_t size) {
  use_emulated_world(size);
  auto& control = test_world().communicator("control");
  recorded_calls(control, /*forget=*/true);
  const int64_t before = cpu_memory().live;
  restart_cpu_peak();
  const auto said = collect(control, test_world().device(), std::string(10'000, 'x'), 2);
  EXPECT_EQ(said.size(), 1u);
  int64_t bytes = 0;
  for (const auto& call : recorded_calls(control, /*forget=*/true)) bytes += call.bytes;
  return {bytes, cpu_memory().peak - before};
}

TEST(ControlMemory, ATextTakesTheSameBytesForAnyNumberOfRanks) {
  const auto small = text_in_world_of(4);
  EXPECT_GE(small.first, 10'000);
  EXPECT_GE(small.second, 10'000);
  EXPECT_EQ(text_in_world_of(16'384), small);
}

INSTANTIATE_TEST_SUITE_P(Ranks, MemoryTest, ::testing::Values(1, 2, 4, 8));

// ---- across strategies --------------------------------------------------------------------------

/// Weights that divide evenly, so that nothing is padded.
struct EvenBlockImpl : torch::nn::Module {
  EvenBlockImpl() { register_parameter("weight", torch::zeros({64, 128})); }
};
TORCH_MODULE(EvenBlock);

int64_t planned_peak(Strategy strategy) {
  const ShardingCase way{"", Placement(strategy)};
  const UnitOptions options{.mesh = mesh_for(way), .placement = way.placement};
  EvenBlock model;  // with a weight of its own, too
  for (int64_t i = 0; i < 8; ++i) {
    fully_shard(model->register_module("block" + std::to_string(i), EvenBlock()), options);
  }
  fully_shard(model, options);
  return program(model).bytes().peak();
}

TEST(MemoryOfStrategies, Zero2DoesNotPeakAboveZero1NorZero3AboveZero2) {
  using enum Strategy;
  for (const int64_t ranks : {2, 4, 8}) {
    SCOPED_TRACE(ranks);
    use_emulated_world(ranks);
    EXPECT_LT(planned_peak(optim_grads_params), planned_peak(optim_grads));
    EXPECT_LT(planned_peak(optim_grads), planned_peak(optim));
    EXPECT_LE(planned_peak(optim), planned_peak(no_shard));
  }
}

}  // namespace
}  // namespace sherd::testing
