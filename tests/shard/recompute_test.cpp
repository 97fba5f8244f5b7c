// SPDX-License-Identifier: Apache-2.0
// Recompute in every relation to units; prefetching; what stays gathered; dtypes.
#include <torch/csrc/autograd/autograd.h>

#include "shard/failure_fixture.h"
#include "shard/twin.h"

namespace sherd::testing {
namespace {

/// The gathers and reductions of one training pass that changes nothing.
StepTraffic pass_traffic(const Chain& model) {
  const auto& made = program(model);
  auto sum = traffic_of(made.forward({}));
  sum += traffic_of(made.backward({}));
  return sum;
}

class RecomputeTest : public ::testing::TestWithParam<ShardingCase> {
 protected:
  void expect_same_without_further_gathers(const ChainImpl::Route& route) {
    Twin twin(options_for(GetParam()));
    const auto plain = pass_traffic(twin.model);
    twin.set_route(route);
    twin.expect_same([](Chain& m, int64_t rank, int64_t step) { train_once(m, rank, step); });
    EXPECT_EQ(pass_traffic(twin.model), plain);
  }
};

TEST_P(RecomputeTest, AroundOneUnit) {
  expect_same_without_further_gathers([](ChainImpl& chain, const at::Tensor& x) {
    auto y = x;
    for (auto& link : chain.links) {
      y = recompute([&link](const at::Tensor& z) { return link(z); }, y);
    }
    return y;
  });
}

TEST_P(RecomputeTest, AroundSeveralUnits) {
  expect_same_without_further_gathers([](ChainImpl& chain, const at::Tensor& x) {
    auto y = chain.links[0](x);
    y = recompute([&chain](const at::Tensor& z) { return chain.links[2](chain.links[1](z)); }, y);
    return chain.links[3](y);
  });
}

TEST_P(RecomputeTest, Nested) {
  expect_same_without_further_gathers([](ChainImpl& chain, const at::Tensor& x) {
    return recompute(
        [&chain](const at::Tensor& z) {
          const auto y = chain.links[0](z);
          const auto inner = recompute(
              [&chain](const at::Tensor& w) { return chain.links[2](chain.links[1](w)); }, y);
          return chain.links[3](inner);
        },
        x);
  });
}

TEST_P(RecomputeTest, AroundTheRoot) {
  Twin twin(options_for(GetParam()));
  twin.expect_same([](Chain& model, int64_t rank, int64_t step) {
    const auto x = chain_input(rank, step);
    recompute([&model](const at::Tensor& y) { return model(y); }, x).backward();
  });
}

TEST_P(RecomputeTest, RandomNumbersAreTheSameBothTimes) {
  Twin twin(options_for(GetParam()));
  // On CPU, so that the reference draws the same numbers as each rank.
  const auto route = [](bool again) {
    return [again](ChainImpl& chain, const at::Tensor& x) {
      const auto noisy = [&chain](const at::Tensor& y) {
        const auto mask = (torch::rand({3, 6}) > 0.4).to(y.device());
        return chain.links[1](chain.links[0](y) * mask) + torch::randn({3, 6}).to(y.device());
      };
      const auto y = again ? recompute(noisy, x) : noisy(x);
      return chain.links[3](chain.links[2](y)) * torch::rand({1}).to(x.device());
    };
  };
  twin.model->route = route(true);
  twin.reference->route = route(false);
  twin.expect_same([](Chain& model, int64_t rank, int64_t step) {
    torch::manual_seed(step * 10 + rank);
    train_once(model, rank, step);
  });
}

INSTANTIATE_TEST_SUITE_P(Ways, RecomputeTest, ::testing::ValuesIn(all_ways()), [](const auto& way) {
  return way.param.name;
});

TEST(RecomputeOnce, AnInputWithoutGradientAndSeveralOutputs) {
  auto weight = torch::randn({4, 4}).set_requires_grad(true);
  const auto x = torch::randn({2, 4});
  const auto both = [&](const at::Tensor& y) {
    return std::tuple(torch::matmul(y, weight), torch::tanh(torch::matmul(y, weight)));
  };
  const auto [a, b] = recompute(both, x);
  (a * b).sum().backward();
  const auto found = weight.grad().clone();
  weight.mutable_grad().zero_();
  const auto [c, d] = both(x);
  (c * d).sum().backward();
  EXPECT_TRUE(torch::equal(found, weight.grad()));
}

TEST(RecomputeOnce, SecondDerivativesThrow) {
  auto x = torch::randn({2, 4}).set_requires_grad(true);
  const auto y = recompute([](const at::Tensor& z) { return z * z * z; }, x).sum();
  expect_error({"[nn] recompute has no second derivative"}, [&] {
    torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
  });
}

// ---- options ------------------------------------------------------------------------------------

class OptionsTest : public ::testing::TestWithParam<ShardingCase> {
 protected:
  UnitOptions options() const { return options_for(GetParam()); }
  static void train(Chain& model, int64_t rank, int64_t step) { train_once(model, rank, step); }
};

TEST_P(OptionsTest, AnyPrefetchDepthGivesTheSame) {
  for (const int64_t depth : {0, 2, 9}) {
    Twin twin(options(), {.prefetch_depth = depth});
    twin.expect_same(train);
  }
}

TEST_P(OptionsTest, UnitsMayStayGathered) {
  auto given = options();
  given.keep_gathered = true;
  Twin twin(given);
  micro_batches(twin.model, 2);
  twin.expect_same([](Chain& model, int64_t rank, int64_t step) {
    auto first = model(chain_input(rank, step, 0));
    auto second = model(chain_input(rank, step, 1));
    {
      const torch::NoGradGuard no_grad;
      model(chain_input(rank, step, 2));
    }
    second.backward();
    first.backward();
  });
}

TEST_P(OptionsTest, AUnitMaySayWhichUnitsToPrefetch) {
  Twin twin(options(), 4, [](Chain& model, const UnitOptions& given) {
    auto first = given;
    fully_shard(model->links[3], given);
    fully_shard(model->links[2], given);
    first.prefetch = {model->links[2].ptr(), model->links[3].ptr()};
    fully_shard(model->links[1], first);
    fully_shard(model->links[0], given);
    fully_shard(model, given);
  });
  twin.expect_same(train);
}

TEST_P(OptionsTest, GradientsMayBeReducedInAnotherDtypeThanTheyAccumulateIn) {
  auto given = options();
  given.precision.reduce = torch::kDouble;
  Twin twin(given);
  micro_batches(twin.model, 3);
  twin.expect_same([](Chain& model, int64_t rank, int64_t step) {
    for (int64_t i = 0; i < 3; ++i) train_once(model, rank, step, i);
  });
}

TEST_P(OptionsTest, ALossPerTokenIsDividedOnceByAllTokens) {
  Twin twin(options(), {.loss = Loss::per_token});
  micro_batches(twin.model, 2);
  auto optimizer = make_optimizer(Optimizer::sgd, parameters(twin.model));
  auto reference = make_optimizer(Optimizer::sgd, twin.reference->parameters());
  const auto& world = test_world();
  for (auto& parameter : twin.reference->parameters()) {
    parameter.mutable_grad() = torch::zeros_like(parameter);
  }
  int64_t all = 0;
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    for (int64_t i = 0; i < 2; ++i) train_once(twin.reference, rank, 0, i);
    all += 3 + rank;
  }
  for (auto& parameter : twin.reference->parameters()) parameter.mutable_grad() /= all;
  for (int64_t i = 0; i < 2; ++i) train_once(twin.model, world.rank(), 0, i);
  sherd::step(twin.model, *optimizer, {.tokens = 3 + world.rank()});
  reference->step();
  expect_weights(full_parameters(twin.model), *twin.reference, 1e-5);
}

TEST_P(OptionsTest, TheGradientNormIsTheWholeNorm) {
  Twin twin(options());
  const auto& world = test_world();
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    (twin.reference(chain_input(rank, 0)) / world.size()).backward();
  }
  double squares = 0;
  for (const auto& parameter : twin.reference->parameters()) {
    if (parameter.grad().defined()) squares += parameter.grad().square().sum().item<double>();
  }
  train_once(twin.model, world.rank(), 0);
  EXPECT_NEAR(gradient_norm(twin.model), std::sqrt(squares), 1e-6 * std::sqrt(squares));
}

INSTANTIATE_TEST_SUITE_P(Ways, OptionsTest, ::testing::ValuesIn(all_ways()), [](const auto& way) {
  return way.param.name;
});

// ---- bf16 ---------------------------------------------------------------------------------------

/// bf16 parameters with fp32 main weights and gradients: final main weights.
NamedTensors train_bf16(const char* name) {
  for (const auto& way : all_ways()) {
    if (way.name != name) continue;
    torch::manual_seed(3);
    Chain model(4);
    to_device(*model);
    model->to(torch::kBFloat16);
    auto options = options_for(way);
    options.precision = {
        .main = torch::kFloat, .gradient = torch::kFloat, .reduce = torch::kBFloat16};
    Twin::shard_in_order(model, options);
    micro_batches(model, 2);
    auto optimizer = make_optimizer(Optimizer::adamw, parameters(model));
    const int64_t rank = test_world().rank();
    for (int64_t step = 0; step < 5; ++step) {
      for (const int64_t i : {0, 1}) {
        model(chain_input(rank, step, i).to(torch::kBFloat16)).backward();
      }
      sherd::step(model, *optimizer);
    }
    return full_parameters(model);
  }
  return {};
}

void expect_bit_equal(const char* one, const char* other) {
  const auto a = train_bf16(one);
  const auto b = train_bf16(other);
  ASSERT_FALSE(a.empty());
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(torch::equal(a[i].second, b[i].second))
        << one << ", " << other << ", " << a[i].first;
  }
}

TEST(Bf16Test, StrategiesThatReduceAlikeAreBitEqual) {
  expect_bit_equal("optim_grads", "optim_grads_params");                        // every micro-batch
  if (!test_world().device().is_cuda()) expect_bit_equal("no_shard", "optim");  // once a step
  expect_bit_equal("HSDP", "HFSDP");
}

}  // namespace
}  // namespace sherd::testing
