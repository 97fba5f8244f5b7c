// SPDX-License-Identifier: Apache-2.0
// What a step sends, as an emulated world sees it.
#include <algorithm>

#include "comm/emulated/recorded_calls.h"
#include "shard/emulated_world.h"
#include "shard/stack.h"

namespace sherd::testing {
namespace {

using Recompute = StackImpl::Recompute;
using Calls = std::vector<RecordedCall>;

constexpr int64_t kMicroBatches = 3;

/// The calls since the last time, without those by which ranks agree.
Calls calls_since() {
  auto calls = recorded_calls(test_world().communicator(), /*forget=*/true);
  std::erase_if(calls, [](const RecordedCall& call) { return call.communicator == "control"; });
  return calls;
}

StepTraffic traffic_of_calls(const Calls& calls) {
  StepTraffic sum;
  for (const auto& call : calls) {
    auto* kind = call.collective == Collective::all_gather       ? &sum.all_gather
                 : call.collective == Collective::reduce_scatter ? &sum.reduce_scatter
                 : call.collective == Collective::all_reduce     ? &sum.all_reduce
                                                                 : nullptr;
    if (!kind) {
      ADD_FAILURE() << "a call of another kind on " << call.communicator;
      continue;
    }
    ++kind->calls;
    kind->bytes += call.bytes;
  }
  return sum;
}

/// Calls over an axis of that many ranks.
int64_t count_over(const Calls& calls, int64_t ranks, Collective collective) {
  return std::count_if(calls.begin(), calls.end(), [&](const RecordedCall& call) {
    return call.ranks == ranks && call.collective == collective;
  });
}

/// A stack with a step behind it, so that its order is known and its weights have changed.
class Trained {
 public:
  struct Options {
    ShardingCase way;
    Recompute recompute = Recompute::nowhere;
    Precision precision{};
    c10::ScalarType model = torch::kFloat;
    bool frozen_block = false;
    bool keep_gathered = false;
  };

  explicit Trained(const Options& options) : dtype_(options.model), model(options.recompute) {
    model->to(options.model);
    if (options.frozen_block) {
      for (auto& parameter : model->blocks.front()->parameters()) {
        parameter.set_requires_grad(false);
      }
    }
    UnitOptions shard{.mesh = mesh_for(options.way), .placement = options.way.placement};
    shard.precision = options.precision;
    shard.keep_gathered = options.keep_gathered;
    shard_stack(model, shard);
    micro_batches(model, kMicroBatches);
    optimizer_ = make_optimizer(Optimizer::sgd, parameters(model));
    for (int64_t i = 0; i < kMicroBatches; ++i) pass();
    update();
    calls_since();
  }

  at::Tensor forward() {
    const auto test = [&](at::IntArrayRef shape) {
      return random_input(0, 0, 0, shape).to(dtype_);
    };
    return model(test({4, 7}), test({4, 3}));
  }
  void pass() { forward().backward(); }
  void validate() {
    const torch::NoGradGuard no_grad;
    forward();
  }
  void update() { sherd::step(model, *optimizer_); }
  Calls step() {
    for (int64_t i = 0; i < kMicroBatches; ++i) pass();
    update();
    return calls_since();
  }

 private:
  c10::ScalarType dtype_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;

 public:
  Stack model;
};

class TrafficTest : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { use_emulated_world(GetParam()); }
};

TEST_P(TrafficTest, AStepOfThreeMicroBatchesAndThreeGroupsMakesThePromisedCalls) {
  struct Promise {
    const char* way;
    int64_t all_gathers, reduce_scatters, all_reduces;
  };
  const std::vector<Promise> promises{{"no_shard", 0, 0, 3},    {"optim", 3, 3, 0},
                                      {"optim_grads", 3, 9, 0}, {"optim_grads_params", 18, 9, 0},
                                      {"HSDP", 18, 9, 3},       {"HFSDP", 21, 12, 0},
                                      {"grads_optim", 6, 12, 0}};
  for (const auto& promise : promises) {
    for (const auto& [name, recompute] : all_recomputes()) {
      SCOPED_TRACE(c10::str(promise.way, ", ", name));
      Trained trained({.way = way_called(promise.way), .recompute = recompute});
      const auto traffic = traffic_of_calls(trained.step());
      EXPECT_EQ(traffic.all_gather.calls, promise.all_gathers);
      EXPECT_EQ(traffic.reduce_scatter.calls, promise.reduce_scatters);
      EXPECT_EQ(traffic.all_reduce.calls, promise.all_reduces);
    }
  }
}

TEST_P(TrafficTest, EveryWaySendsTheCallsAndBytesOfItsProgram) {
  const Precision wide{.main = torch::kFloat, .gradient = torch::kFloat, .reduce = torch::kFloat};
  Precision narrow_wire = wide;
  narrow_wire.reduce = torch::kBFloat16;
  for (const auto& way : all_ways()) {
    for (const auto& [name, recompute] : all_recomputes()) {
      const std::vector<std::pair<const char*, Trained::Options>> settings{
          {"fp32", {.way = way, .recompute = recompute}},
          {"a frozen block", {.way = way, .recompute = recompute, .frozen_block = true}},
          {"kept gathered", {.way = way, .recompute = recompute, .keep_gathered = true}},
          {"bf16 with fp32 beside it",
           {.way = way, .recompute = recompute, .precision = wide, .model = torch::kBFloat16}},
          {"bf16 on the wire too",
           {.way = way,
            .recompute = recompute,
            .precision = narrow_wire,
            .model = torch::kBFloat16}}};
      for (const auto& [what, options] : settings) {
        SCOPED_TRACE(c10::str(way.name, ", ", name, ", ", what));
        Trained trained(options);
        const auto& program = sherd::program(trained.model);
        const auto seen = traffic_of_calls(trained.step());
        const auto planned = program.traffic();
        for (const auto kind :
             {&StepTraffic::all_gather, &StepTraffic::reduce_scatter, &StepTraffic::all_reduce}) {
          EXPECT_EQ((seen.*kind).calls, (planned.*kind).calls);
          EXPECT_EQ((seen.*kind).bytes, (planned.*kind).bytes);
        }
        EXPECT_GT(planned.all_gather.calls + planned.all_reduce.calls, 0);
      }
    }
  }
}

TEST_P(TrafficTest, BytesOnTheWireHaveTheDtypeOfTheirRole) {
  const Precision precision{
      .main = torch::kFloat, .gradient = torch::kFloat, .reduce = torch::kFloat};
  Trained trained({.way = way_called("HFSDP"), .precision = precision, .model = torch::kBFloat16});
  int64_t elements = 0;  // of all parameters, padding included
  for (const auto& unit : program(trained.model).units()) {
    for (const auto& group : unit.groups) elements += group.elements;
  }
  int64_t gathered = 0;
  int64_t reduced = 0;
  const auto inner = mesh_for(way_called("HFSDP")).size("dp");
  for (const auto& call : trained.step()) {
    const bool gathers = call.collective == Collective::all_gather;
    EXPECT_EQ(call.dtype, gathers ? torch::kBFloat16 : torch::kFloat);
    (gathers ? gathered : reduced) += call.bytes;
  }
  // Twice in each micro-batch over the inner axis, and this rank's inner part once over the outer.
  EXPECT_EQ(gathered, 2 * (6 * elements + elements / inner));
  EXPECT_EQ(reduced, 4 * (3 * elements + elements / inner));
}

INSTANTIATE_TEST_SUITE_P(Ranks, TrafficTest, ::testing::Values(1, 2, 8));

/// Two by four ranks, so that the calls over each axis can be told apart.
class TrafficOverTwoAxes : public ::testing::Test {
 protected:
  static constexpr int64_t kOuter = 2;
  void SetUp() override { use_emulated_world(8); }
};

TEST_F(TrafficOverTwoAxes, AValidationPassAfterAnUpdateDoesTheOuterGatherAndTheNextPassDoesNot) {
  Trained trained({.way = way_called("HFSDP")});
  trained.validate();
  auto calls = calls_since();
  EXPECT_EQ(count_over(calls, kOuter, Collective::all_gather), 3);
  EXPECT_EQ(std::ssize(calls), 3 + 3);
  trained.validate();
  EXPECT_EQ(count_over(calls_since(), kOuter, Collective::all_gather), 0);
  trained.pass();
  calls = calls_since();
  EXPECT_EQ(count_over(calls, kOuter, Collective::all_gather), 0);
  EXPECT_EQ(std::ssize(calls), 6 + 3);
  for (int64_t i = 1; i < kMicroBatches; ++i) trained.pass();
  trained.update();
  calls_since();
  trained.pass();
  EXPECT_EQ(count_over(calls_since(), kOuter, Collective::all_gather), 3);
}

TEST_F(TrafficOverTwoAxes, AnIdleValidationPassDoesTheOuterGatherToo) {
  Trained trained({.way = way_called("HFSDP")});
  {
    const torch::NoGradGuard no_grad;
    idle_pass(trained.model);
  }
  EXPECT_EQ(count_over(calls_since(), kOuter, Collective::all_gather), 3);
  trained.pass();
  EXPECT_EQ(count_over(calls_since(), kOuter, Collective::all_gather), 0);
}

/// Which of the micro-batches this rank has no data for.
class TrafficWithIdlePasses : public TrafficOverTwoAxes,
                              public ::testing::WithParamInterface<int64_t> {};

TEST_P(TrafficWithIdlePasses, TheOuterReductionRunsInTheLastMicroBatchAlone) {
  for (const auto& [name, collective] :
       {std::pair{"HSDP", Collective::all_reduce}, {"HFSDP", Collective::reduce_scatter}}) {
    SCOPED_TRACE(name);
    Trained trained({.way = way_called(name)});
    for (int64_t i = 0; i < kMicroBatches; ++i) {
      SCOPED_TRACE(i);
      if (i == GetParam()) {
        idle_pass(trained.model);
      } else {
        trained.pass();
      }
      const auto calls = calls_since();
      EXPECT_EQ(count_over(calls, kOuter, collective), i + 1 == kMicroBatches ? 3 : 0);
      EXPECT_EQ(count_over(calls, 4, Collective::reduce_scatter), 3);
      EXPECT_EQ(count_over(calls, 4, Collective::all_gather), 6);
    }
    trained.update();
    EXPECT_TRUE(calls_since().empty());
  }
}

INSTANTIATE_TEST_SUITE_P(
    NoDataFor, TrafficWithIdlePasses, ::testing::Values(-1, 0, 1, 2), [](const auto& skipped) {
      return skipped.param < 0 ? std::string("None") : std::to_string(skipped.param);
    });

}  // namespace
}  // namespace sherd::testing
