// SPDX-License-Identifier: Apache-2.0
// norm_linear() and norm_feed_forward() of rows that ranks share (NormOptions::ranks), against the
// same thing done with the rows of all ranks on each rank.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <map>

#include "nn/fp8_model.h"
#include "ranks/rank_world.h"
#include "sherd/nn/exchange.h"
#include "sherd/nn/functional.h"

namespace sherd::testing {
namespace {

constexpr int64_t kDim = 8, kWidth = 6, kRows = 3;

/// What reaches the loss on a rank.
struct Used {
  bool sum = true;
  bool result = true;
};

class SharedRowsTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  using Tensors = std::vector<at::Tensor>;

  /// From a rank's inputs (x, residual, norm, weights …) to the sum and the result.
  using Operation = std::function<std::tuple<at::Tensor, at::Tensor>(
      const Tensors& inputs, const std::optional<Exchange>& ranks)>;
  struct Case {
    Operation shared;
    /// The results of all ranks, from the inputs of all ranks, in fp64.
    std::function<Tensors(const std::vector<Tensors>& inputs, const Tensors& normed)> together;
    std::vector<std::vector<int64_t>> weights;
    bool gathers = false;  ///< the result has the rows of all ranks
  };

  const int64_t size = test_world().size();
  const int64_t rank = test_world().rank();
  Mesh mesh{test_world(), {{"tp", size}}};
  Exchange exchange{mesh, "tp", "rows"};

  static at::Tensor values(at::IntArrayRef shape, int64_t of_rank, int64_t salt) {
    auto generator =
        at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(100 * salt + of_rank));
    return at::randn(shape, generator, at::kFloat);
  }

  static Tensors inputs_of(const Case& which, int64_t of_rank) {
    Tensors result{
        values({2, kRows, kDim}, of_rank, 1), values({2, kRows, kDim}, of_rank, 2),
        values({kDim}, 0, 3).abs() + 0.5};
    for (const auto& shape : which.weights) {
      result.push_back(values(shape, of_rank, 4 + std::ssize(result)) / 3);
    }
    return result;
  }

  static double far(const at::Tensor& found, const at::Tensor& wanted) {
    EXPECT_EQ(found.sizes(), wanted.sizes());
    const auto apart = found.detach().cpu().to(at::kDouble) - wanted.detach();
    return (apart.norm() / wanted.norm().clamp_min(1e-3)).item<double>();
  }

  /// The gradients of all inputs of all ranks, of the sum of the ranks' losses.
  std::vector<Tensors> wanted(const Case& which, const std::function<Used(int64_t)>& used) const {
    std::vector<Tensors> inputs;
    Tensors sums, normed;
    for (int64_t r = 0; r < size; ++r) {
      inputs.push_back(inputs_of(which, r));
      for (auto& one : inputs.back()) one = one.to(at::kDouble).set_requires_grad(true);
      const auto& mine = inputs.back();
      sums.push_back(mine[0] + mine[1]);
      const auto scale = (sums.back().square().mean(-1, true) + 1e-5).rsqrt();
      normed.push_back(sums.back() * scale * mine[2]);
    }
    const auto results = which.together(inputs, normed);
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (int64_t r = 0; r < size; ++r) {
      const auto i = static_cast<size_t>(r);
      if (used(r).sum) loss = loss + (sums[i] * values(sums[i].sizes(), r, 20)).sum();
      if (used(r).result) loss = loss + (results[i] * values(results[i].sizes(), r, 21)).sum();
    }
    loss.backward();
    std::vector<Tensors> gradients;
    for (const auto& of_rank : inputs) {
      gradients.emplace_back();
      for (const auto& one : of_rank) {
        gradients.back().push_back(one.grad().defined() ? one.grad() : at::zeros_like(one));
      }
    }
    return gradients;
  }

  void expect_gradients(const Case& which, const std::function<Used(int64_t)>& used) const {
    const auto device = test_world().device();
    auto mine = inputs_of(which, rank);
    for (auto& one : mine) one = one.to(device).set_requires_grad(true);
    const bool narrow = GetParam() == at::kBFloat16;
    std::tuple<at::Tensor, at::Tensor> both;
    if (narrow) {
      at::autocast::set_autocast_enabled(device.type(), true);
      at::autocast::set_autocast_dtype(device.type(), at::kBFloat16);
    }
    both = which.shared(mine, exchange);
    if (narrow) at::autocast::set_autocast_enabled(device.type(), false);
    const auto& [sum, result] = both;
    EXPECT_EQ(sum.scalar_type(), at::kFloat);
    EXPECT_EQ(result.scalar_type(), GetParam());
    EXPECT_EQ(result.size(1), which.gathers ? kRows * size : kRows);
    at::Tensor loss = at::zeros({}, at::TensorOptions(at::kFloat).device(device));
    if (used(rank).sum) loss = loss + (sum * values(sum.sizes(), rank, 20).to(device)).sum();
    if (used(rank).result) {
      loss = loss + (result * values(result.sizes(), rank, 21).to(device)).sum();
    }
    loss.backward();
    const auto all = wanted(which, used);
    const double near = narrow ? 2e-2 : 1e-5;
    for (size_t i = 0; i < mine.size(); ++i) {
      auto expected = all[static_cast<size_t>(rank)][i];
      auto found = mine[i].grad();
      if (i == 2) {  // each rank has the gradient of its own rows
        ASSERT_TRUE(found.defined());
        expected = at::zeros_like(expected);
        for (const auto& of_rank : all) expected = expected + of_rank[i];
        found = exchange.sum_numbers(found);
      }
      if (!found.defined()) found = at::zeros_like(mine[i]);
      EXPECT_LT(far(found, expected), near) << "input " << i;
    }
  }

  /// Each of the ways in which ranks may differ.
  void expect_gradients(const Case& which) const {
    const auto both = [](int64_t) { return Used{}; };
    const auto only_sum_on = [](int64_t odd) {
      return [odd](int64_t r) { return Used{.result = r != odd}; };
    };
    for (const auto& used :
         std::vector<std::function<Used(int64_t)>>{both, only_sum_on(0), only_sum_on(size - 1)}) {
      expect_gradients(which, used);
    }
    expect_gradients(which, [](int64_t r) { return Used{.sum = r != 0}; });
  }
};

TEST_P(SharedRowsTest, ANormAndAProductHaveTheGradientsOfAllRanksLosses) {
  expect_gradients(
      {[](const Tensors& in, const std::optional<Exchange>& ranks) {
         return norm_linear(in[0], in[1], {in[2], 1e-5, ranks}, in[3]);
       },
       [this](const std::vector<Tensors>& inputs, const Tensors& normed) {
         const auto rows = at::cat(normed, 1);
         Tensors results;
         for (const auto& mine : inputs) results.push_back(at::matmul(rows, mine[3].t()));
         return results;
       },
       {{kWidth, kDim}},
       /*gathers=*/true});
}

TEST_P(SharedRowsTest, AFeedForwardHasTheGradientsOfAllRanksLosses) {
  for (const bool again : {false, true}) {
    expect_gradients(
        {[again](const Tensors& in, const std::optional<Exchange>& ranks) {
           return norm_feed_forward(
               in[0], in[1], {in[2], 1e-5, ranks}, in[3], in[4], {.recompute_gate_up = again});
         },
         [this](const std::vector<Tensors>& inputs, const Tensors& normed) {
           const auto rows = at::cat(normed, 1);
           at::Tensor sum;
           for (const auto& mine : inputs) {
             const auto parts = at::matmul(rows, mine[3].t()).chunk(2, -1);
             const auto part = at::matmul(at::silu(parts[0]) * parts[1], mine[4].t());
             sum = sum.defined() ? sum + part : part;
           }
           return sum.chunk(size, 1);
         },
         {{2 * kWidth, kDim}, {kDim, kWidth}}});
  }
}

// ---- weights in fp8
// ------------------------------------------------------------------------------

/// A layer whose rows ranks may share. All ranks have the same weights.
struct SharedFp8LayerImpl : torch::nn::Module {
  explicit SharedFp8LayerImpl(std::optional<Exchange> sharing) : ranks(std::move(sharing)) {
    at::manual_seed(7);
    norm1 = register_parameter("norm1", at::rand({kFp8Dim}) + 0.5);
    proj = register_parameter("proj", at::randn({kFp8Width, kFp8Dim}) / 11);
    norm2 = register_parameter("norm2", at::rand({kFp8Dim}) + 0.5);
    gate_up = register_parameter("gate_up", at::randn({2 * kFp8Width, kFp8Dim}) / 11);
    down = register_parameter("down", at::randn({kFp8Dim, kFp8Width}) / 11);
    to(test_world().device());
  }
  /// {product, result}
  std::vector<at::Tensor> forward(const at::Tensor& x, const at::Tensor& residual) {
    auto [sum, product] = norm_linear(x, residual, {norm1, 1e-5, ranks}, proj);
    auto result = std::get<1>(norm_feed_forward(
        sum, {}, {norm2, 1e-5, ranks}, gate_up, down,
        {.recompute_gate_up = recomputes, .adds_sum = adds_sum}));
    return {std::move(product), std::move(result)};
  }
  std::optional<Exchange> ranks;
  bool recomputes = false;
  bool adds_sum = false;
  at::Tensor norm1, proj, norm2, gate_up, down;
};
SHERD_MODULE(SharedFp8Layer);

class SharedRowsInFp8 : public ::testing::TestWithParam<std::string> {
 protected:
  const int64_t size = test_world().size();
  const int64_t rank = test_world().rank();

  struct Outcome {
    at::Tensor product, result, x_gradient, residual_gradient;
    std::map<std::string, at::Tensor> gradients;
  };
  /// A forward and a backward, where the product's gradient is defined only if it is used.
  Outcome run(bool shares, bool recomputes, bool adds_sum, bool uses_product) const {
    std::optional<Exchange> ranks;
    if (shares) ranks.emplace(Mesh(test_world(), {{"tp", size}}), "tp", "rows");
    SharedFp8Layer layer(ranks);
    layer->recomputes = recomputes;
    layer->adds_sum = adds_sum;
    UnitOptions options{.mesh = Mesh(test_world(), {{"dp", size}})};
    options.placement = Placement(Strategy::no_shard);
    options.precision = Precision::recipe(GetParam());
    fully_shard(layer, options);
    const auto mine = [&](const at::Tensor& all) {
      return (shares ? all.chunk(size, 1)[static_cast<size_t>(rank)] : all).contiguous();
    };
    const auto given = [&](int64_t salt, int64_t width) {
      return random_input(salt, 0, 0, {2, 8 * size, width})
          .to(at::kBFloat16)
          .to(test_world().device());
    };
    Outcome outcome;
    auto x = mine(given(1, kFp8Dim)).set_requires_grad(true);
    auto residual = mine(given(2, kFp8Dim)).set_requires_grad(true);
    auto both = layer(x, residual);
    outcome.product = both[0].detach();
    outcome.result = both[1].detach();
    auto loss = (both[1].to(at::kFloat) * mine(given(3, kFp8Dim))).sum();
    if (uses_product) loss = loss + (both[0].to(at::kFloat) * given(4, kFp8Width)).sum();
    loss.backward();
    outcome.x_gradient = x.grad();
    outcome.residual_gradient = residual.grad();
    for (const auto& [name, main] : named_parameters(layer)) {
      outcome.gradients[name] = main.grad().clone();
    }
    return outcome;
  }

  at::Tensor rows_of_rank(const at::Tensor& all) const {
    return all.chunk(size, 1)[static_cast<size_t>(rank)];
  }
  static double far(const at::Tensor& found, const at::Tensor& wanted) {
    const auto wide = wanted.to(at::kDouble);
    return ((found.to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
  }
};

/// Ranks with the same weights, so a sum over them is what one of them computes, times their
/// number.
TEST_P(SharedRowsInFp8, ProductsReadTheSameBytesAsWithAllRowsOnOneRank) {
  for (const bool recomputes : {false, true}) {
    const auto alone = run(/*shares=*/false, recomputes, /*adds_sum=*/false, true);
    const auto shared = run(/*shares=*/true, recomputes, /*adds_sum=*/false, true);
    EXPECT_TRUE(at::equal(shared.product, alone.product));
    const auto n = static_cast<double>(size);
    EXPECT_LT(far(shared.result, rows_of_rank(alone.result) * n), 4e-3);
  }
}

TEST_P(SharedRowsInFp8, ALossThatLeavesOutTheProductOnOneRankHasItsGradients) {
  // Nothing reaches the product: without other ranks its function has no gradient.
  const auto alone = run(false, false, true, /*uses_product=*/false);
  const auto shared = run(true, false, true, /*uses_product=*/false);
  EXPECT_EQ(shared.gradients.at("proj").abs().max().item<double>(), 0);
  EXPECT_EQ(alone.gradients.at("proj").abs().max().item<double>(), 0);
  // One of them uses it, and the others have zeros in their place.
  const auto odd = run(true, false, true, /*uses_product=*/rank == 0);
  EXPECT_GT(odd.gradients.at("proj").abs().max().item<double>(), 0);
  const auto wanted = run(false, false, true, /*uses_product=*/rank == 0);
  EXPECT_LT(far(odd.gradients.at("proj"), wanted.gradients.at("proj")), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(
    Recipes,
    SharedRowsInFp8,
    ::testing::Values("fp8", "fp8_wgrad16", "fp8_block", "mxfp8"),
    [](const auto& one) { return one.param; });

INSTANTIATE_TEST_SUITE_P(
    Products, SharedRowsTest, ::testing::Values(at::kFloat, at::kBFloat16), [](const auto& one) {
      return one.param == at::kFloat ? "fp32" : "autocast";
    });

}  // namespace
}  // namespace sherd::testing
