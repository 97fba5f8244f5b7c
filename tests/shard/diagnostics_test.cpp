// SPDX-License-Identifier: Apache-2.0
// What goes wrong is found, and told by its name.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "shard/failure_fixture.h"
#include "shard/twin.h"
#include "sherd/optim/adamw.h"
#include "sherd/shard/diagnostics.h"

namespace sherd::testing {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kWatchedMicroBatches = 3;

/// Overwrites one element of one gradient of one rank, once.
class GradientFault {
 public:
  GradientFault(const at::Tensor& parameter, int64_t rank) : rank_(rank) {
    parameter.register_hook([this](const at::Tensor& gradient) {
      if (!armed || test_world().rank() != rank_) return gradient;
      auto changed = gradient.clone();
      if (factor != 1) {
        changed *= factor;
      } else {
        changed.view({-1})[changed.numel() - 1] = value;
      }
      return changed;
    });
  }
  bool armed = false;
  double value = kNaN;
  double factor = 1;

 private:
  int64_t rank_;
};

struct Watched {
  explicit Watched(const ShardingCase& way, bool switched = false) {
    torch::manual_seed(5);
    model = Chain(4);
    to_device(*model);
    Twin::shard_in_order(model, options_for(way));
    micro_batches(model, kWatchedMicroBatches);
    if (switched) watch(model, {.before_reduction = true});
  }
  /// The backwards of a step; `fault` is armed in one of them.
  void backwards(int64_t step, GradientFault* fault = nullptr, int64_t when = 0) {
    for (int64_t i = 1; i <= kWatchedMicroBatches; ++i) {
      if (fault) fault->armed = i == when;
      train_once(model, test_world().rank(), step, i);
    }
    if (fault) fault->armed = false;
  }
  Chain model{nullptr};
};

/// Passes until something is said, which may take a while on a GPU.
template <class Body>
std::string first_error_of(Body body) {
  for (int attempt = 0; attempt < 50; ++attempt) {
    try {
      body();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    if (test_world().device().is_cuda()) at::zeros({1}, test_world().device()).cpu();
  }
  return "nothing";
}

class DiagnosticsTest : public ::testing::TestWithParam<ShardingCase> {
 protected:
  bool shards_gradients() const {
    return GetParam().placement.spreads(Role::gradient).inner == Spread::shard;
  }
};

TEST_P(DiagnosticsTest, OneNonFiniteElementOfOneRankIsFoundWithItsParameterAndMicroBatch) {
  const int64_t culprit = test_world().size() - 1;
  for (const bool switched : {false, true}) {
    Watched watched(GetParam(), switched);
    auto optimizer = make_optimizer(Optimizer::sgd, parameters(watched.model));
    GradientFault fault(watched.model->links[2]->second->weight, culprit);
    int64_t steps = 0;
    for (const double value : {kNaN, kInfinity}) {
      for (int64_t when = 1; when <= kWatchedMicroBatches; ++when) {
        SCOPED_TRACE(c10::str("switch ", switched, ", ", value, " in micro-batch ", when));
        watched.backwards(steps);
        EXPECT_TRUE(findings(watched.model).empty());
        sherd::step(*watched.model, *optimizer);
        fault.value = value;
        watched.backwards(steps, &fault, when);
        steps += 2;
        const auto found = findings(watched.model);
        ASSERT_EQ(found.size(), 1);
        EXPECT_EQ(found[0].parameter, "link2.second.weight");
        EXPECT_EQ(found[0].fault, std::isnan(value) ? Fault::nan : Fault::infinite);
        EXPECT_EQ(found[0].step, steps);
        EXPECT_EQ(found[0].micro_batch, when);
        // Gradients that wait to be reduced are still this rank's own.
        if (switched || (!shards_gradients() && when < kWatchedMicroBatches)) {
          EXPECT_EQ(found[0].rank, culprit);
        } else {
          EXPECT_FALSE(found[0].rank.has_value());
        }
        EXPECT_TRUE(findings(watched.model).empty());  // told once
        for (auto& piece : parameters(watched.model)) piece.mutable_grad().zero_();
        sherd::step(*watched.model, *optimizer);
      }
    }
  }
}

TEST_P(DiagnosticsTest, TheErrorNamesParameterMicroBatchAndRankOnAllRanksAndTrainingGoesOn) {
  Watched watched(GetParam(), /*switched=*/true);
  AdamW optimizer(watched.model);
  GradientFault fault(watched.model->links[1]->first->weight, 0);
  watched.backwards(0);
  optimizer.step();
  const auto before = full_parameters(watched.model);
  bool spoilt = false;
  const auto error = first_error_of([&] {
    watched.backwards(1, spoilt ? nullptr : &fault, 2);
    spoilt = true;
    optimizer.step();
  });
  for (const char* word :
       {"parameter 'link1.first.weight' is NaN", "micro-batch 2 of step 2", "on rank 0"}) {
    EXPECT_NE(error.find(word), std::string::npos) << error;
  }
  if (test_world().device().is_cpu()) {  // nothing has happened since
    const auto after = full_parameters(watched.model);
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(at::equal(before[i].second, after[i].second)) << before[i].first;
    }
  }
  if (test_world().device().is_cuda()) optimizer.step();  // thrown at the end of a good backward
  watched.backwards(2);
  optimizer.step();
  EXPECT_TRUE(findings(watched.model).empty());
}

TEST_P(DiagnosticsTest, WithAnyOptimizerALaterPassReportsIt) {
  Watched watched(GetParam());
  auto optimizer = make_optimizer(Optimizer::sgd, parameters(watched.model));
  GradientFault fault(watched.model->links[0]->first->bias, 0);
  int64_t step = 0;
  const auto error = first_error_of([&] {
    watched.backwards(step, step == 0 ? &fault : nullptr, kWatchedMicroBatches);
    ++step;
    sherd::step(*watched.model, *optimizer);
  });
  EXPECT_NE(error.find("parameter 'link0.first.bias' is NaN"), std::string::npos) << error;
  EXPECT_NE(error.find("micro-batch 3 of step 1"), std::string::npos) << error;
}

TEST_P(DiagnosticsTest, AGradientFarAboveItsMeanIsExploding) {
  Watched watched(GetParam());
  auto optimizer = make_optimizer(Optimizer::sgd, parameters(watched.model));
  GradientFault fault(watched.model->links[3]->second->weight, 0);
  fault.factor = 1e9;
  for (int64_t step = 0; step < 12; ++step) {
    watched.backwards(step);
    sherd::step(*watched.model, *optimizer);
  }
  EXPECT_TRUE(findings(watched.model).empty());
  watched.backwards(12, &fault, 2);
  const auto found = findings(watched.model);
  ASSERT_FALSE(found.empty());
  for (const auto& one : found) {
    EXPECT_EQ(one.parameter, "link3.second.weight");
    EXPECT_EQ(one.fault, Fault::exploding);
    EXPECT_EQ(one.step, 13);
    // Where gradients wait to be reduced nothing is known of this rank's own alone.
    EXPECT_EQ(one.micro_batch, shards_gradients() ? 2 : kWatchedMicroBatches);
  }
}

TEST_P(DiagnosticsTest, WhatIsNotFiniteCountsForMoreThanWhatExplodes) {
  Watched watched(GetParam(), /*switched=*/true);
  auto optimizer = make_optimizer(Optimizer::sgd, parameters(watched.model));
  GradientFault fault(watched.model->links[1]->second->weight, 0);
  for (int64_t step = 0; step < 12; ++step) {
    watched.backwards(step);
    sherd::step(*watched.model, *optimizer);
  }
  for (int64_t i = 1; i <= kWatchedMicroBatches; ++i) {
    fault.armed = i < kWatchedMicroBatches;
    fault.factor = i == 1 ? 1e9 : 1;
    train_once(watched.model, test_world().rank(), 12, i);
  }
  const auto found = findings(watched.model);
  EXPECT_TRUE(std::any_of(found.begin(), found.end(), [](const Finding& one) {
    return one.fault == Fault::nan && one.micro_batch == 2 && one.rank == 0;
  }));
}

TEST_P(DiagnosticsTest, FindingsOfAStepThatIsRepeatedAreForgotten) {
  Watched watched(GetParam());
  auto optimizer = make_optimizer(Optimizer::sgd, parameters(watched.model));
  GradientFault fault(watched.model->links[0]->first->weight, 0);
  fault.armed = true;
  train_once(watched.model, test_world().rank(), 0, 1);
  fault.armed = false;
  bool fails = true;
  watched.model->links[3]->second->weight.register_hook([&](const at::Tensor& gradient) {
    TORCH_CHECK(!fails, "a mistake in the backward");
    return gradient;
  });
  expect_error(
      {"a mistake in the backward"}, [&] { train_once(watched.model, test_world().rank(), 0, 2); });
  fails = false;
  for (int64_t step = 0; step < 3; ++step) {
    watched.backwards(step);
    sherd::step(*watched.model, *optimizer);
  }
  EXPECT_TRUE(findings(watched.model).empty());
}

TEST_P(DiagnosticsTest, ALossThatIsScaledMayOverflow) {
  Watched watched(GetParam());
  AdamW optimizer(watched.model, {.scaling = LossScaling{}});
  GradientFault fault(watched.model->links[0]->first->weight, 0);
  fault.value = kInfinity;
  for (int64_t step = 0; step < 4; ++step) {
    watched.backwards(step, step == 1 ? &fault : nullptr, 1);
    optimizer.step();
  }
  EXPECT_EQ(optimizer.updates(), 3);
  EXPECT_EQ(findings(watched.model).size(), 1);  // who asks is told
}

TEST_P(DiagnosticsTest, NormsAreThoseOfTheUnshardedModel) {
  const auto options = options_for(GetParam());
  Twin twin(options);
  const int64_t rank = test_world().rank();
  train_once(twin.model, rank, 0);
  for (int64_t other = 0; other < test_world().size(); ++other) {
    train_once(twin.reference, other, 0);
  }
  const auto found = norms(twin.model);
  const auto expected = twin.reference->named_parameters();
  EXPECT_EQ(found.size(), expected.size());
  for (const auto& [name, weight, gradient] : found) {
    const auto& parameter = expected[name];
    const double norm = parameter.detach().norm().item<double>();
    EXPECT_NEAR(weight, norm, 1e-6 * norm) << name;
    const double mean = parameter.grad().defined() ? parameter.grad().norm().item<double>() /
                                                         static_cast<double>(test_world().size())
                                                   : 0;
    EXPECT_NEAR(gradient, mean, 1e-5 * mean + 1e-9) << name;
  }
}

TEST_P(DiagnosticsTest, TheTableOfGroupsHasTheBytesThatAreThere) {
  Twin twin(options_for(GetParam()));
  int64_t bytes = program(twin.model).bytes().arena;
  int64_t elements = 0;
  int64_t used = 0;
  for (const auto& group : groups(twin.model)) {
    bytes += group.model_bytes + group.main_bytes + group.gradient_bytes;
    elements += group.elements;
    const int64_t whole = group.elements + group.padding;
    if (group.gathered_bytes > 0) {
      EXPECT_EQ(group.gathered_bytes, whole * int64_t{sizeof(float)});
    }
    used += group.model_bytes + group.gradient_bytes - group.padding_bytes;
    used += group.gathered_bytes > 0 ? group.padding * int64_t{sizeof(float)} : 0;
  }
  const auto allocated = allocated_bytes(twin.model);
  EXPECT_EQ(bytes, allocated.sum() - allocated.control);
  // Of a weight and a gradient that are sharded alike, the ranks have each element once.
  if (GetParam().name == "optim_grads_params") {
    auto all = at::full({1}, used, at::TensorOptions(at::kLong).device(test_world().device()));
    test_world().communicator().all_reduce(all, Reduction::sum()).synchronize();
    EXPECT_EQ(all.item<int64_t>(), 2 * elements * int64_t{sizeof(float)});
  }
  int64_t expected = 0;
  for (const auto& parameter : twin.reference->parameters()) expected += parameter.numel();
  EXPECT_EQ(elements, expected);
  const auto text = to_text(groups(twin.model));
  for (const char* word : {"padding bytes", "link0", "link3", "all"}) {
    EXPECT_NE(text.find(word), std::string::npos) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, DiagnosticsTest, ::testing::ValuesIn(all_ways()), [](const auto& one) {
      return one.param.name;
    });

TEST(DiagnosticsErrors, OptionsOutOfRangeAndInTheMiddleOfAStepAreRefused) {
  Watched watched(all_ways().front());
  expect_error({"exploding is 0.5", "above 1"}, [&] { watch(watched.model, {.exploding = 0.5}); });
  train_once(watched.model, test_world().rank(), 0);
  expect_error({"watch of", "1 of 3 backwards are done"}, [&] { watch(watched.model); });
}

TEST(DiagnosticsErrors, WhatIsNotWatchedIsNotFound) {
  Watched watched(all_ways().front());
  watch(watched.model, {.enabled = false});
  GradientFault fault(watched.model->links[0]->first->weight, 0);
  watched.backwards(0, &fault, 1);
  EXPECT_TRUE(findings(watched.model).empty());
}

}  // namespace
}  // namespace sherd::testing
