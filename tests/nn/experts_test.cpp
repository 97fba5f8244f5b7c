// SPDX-License-Identifier: Apache-2.0
// Experts against plain operations in fp64, expert by expert.
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <string>

#include "nn/comparison.h"
#include "sherd/nn/functional.h"

namespace sherd::testing {
namespace {

struct ExpertsCase {
  std::vector<int64_t> shape;  // of x, without its dim
  int64_t dim, width, experts, top_k;
  bool norms = true;  // the weights of a token
};
constexpr double kExpertsEpsilon = 1e-5, kBalance = 0.3;

struct ExpertsInputs {
  at::Tensor x, residual, norm;
  ExpertParameters parameters;

  std::vector<std::pair<const char*, at::Tensor>> all() const {
    const auto& p = parameters;
    return {
        {"x", x},
        {"residual", residual},
        {"norm", norm},
        {"router", p.router},
        {"gate_up", p.gate_up},
        {"down", p.down}};
  }
};

ExpertsInputs wide_inputs(const ExpertsInputs& in) {
  const auto& p = in.parameters;
  return {
      twin(in.x),
      twin(in.residual),
      twin(in.norm),
      {twin(p.router), twin(p.gate_up), twin(p.down)}};
}

struct PlainExperts {
  at::Tensor result, balance;
};

/// The experts on y with plain operations in fp64, storing in `dtype` what is stored.
PlainExperts plain_experts(
    const at::Tensor& y,
    const ExpertParameters& p,
    const RoutingOptions& routing,
    at::ScalarType dtype) {
  const int64_t top_k = routing.top_k;
  const auto y_TD = y.flatten(0, -2);
  const auto chances_TE = y_TD.matmul(p.router.t()).softmax(-1);
  const auto chosen_TK = std::get<1>(chances_TE.topk(top_k, -1));
  const auto taken_TE = at::zeros_like(chances_TE).scatter(1, chosen_TK, 1);
  const auto best_TE = chances_TE * taken_TE;
  const auto weights_TE = routing.norm_top_k ? best_TE / best_TE.sum(-1, true) : best_TE;
  auto result_TD = at::zeros_like(y_TD);
  const int64_t experts = p.router.size(0);
  for (int64_t e = 0; e < experts; ++e) {
    const auto halves = stored(y_TD.matmul(p.gate_up[e].t()), dtype).chunk(2, -1);
    const auto open = halves[0] * halves[0].sigmoid() * halves[1];
    const auto activation = stored(open * weights_TE.select(1, e).unsqueeze(1), dtype);
    result_TD = result_TD + stored(activation.matmul(p.down[e].t()), dtype);
  }
  const int64_t tokens = std::max<int64_t>(y.size(-2), 1);
  const auto of_sequences = [&](const at::Tensor& values) {
    return values.view({-1, y.size(-2), experts}).sum(1);
  };
  const auto shares = of_sequences(taken_TE) / static_cast<double>(top_k * tokens);
  const auto balance = (shares * of_sequences(chances_TE)).sum() * static_cast<double>(experts);
  return {result_TD.view(y.sizes()), balance};
}

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight, at::ScalarType dtype) {
  return stored(x * ((x * x).mean(-1, true) + kExpertsEpsilon).rsqrt() * weight, dtype);
}

class ExpertsOpTest : public OnDevice {
 protected:
  std::vector<ExpertsCase> cases() const {
    std::vector<ExpertsCase> all{
        {{2, 9}, 16, 24, 5, 2},
        {{33}, 64, 40, 8, 4},
        {{1, 1}, 8, 16, 4, 1},  // experts without tokens
        {{2, 3, 5}, 16, 8, 3, 3},
        {{2, 9}, 16, 24, 5, 2, /*norms=*/false},
        {{3}, 8, 16, 4, 1, /*norms=*/false}};
    // On a GPU torch's grouped products take multiples of 8.
    if (device().is_cpu()) all.push_back({{3, 7}, 7, 11, 6, 5});
    return all;
  }
  ExpertsInputs inputs(const ExpertsCase& one, at::ScalarType dtype) const {
    auto shape = one.shape;
    shape.push_back(one.dim);
    const double scale = 1 / std::sqrt(static_cast<double>(one.dim));
    return {
        leaf(shape, dtype),
        leaf(shape, dtype),
        leaf({one.dim}, dtype),
        {leaf({one.experts, one.dim}, dtype, scale),
         leaf({one.experts, 2 * one.width, one.dim}, dtype, 2 * scale),
         leaf({one.experts, one.dim, one.width}, dtype, scale)}};
  }
  static ExpertsResult run(
      const ExpertsInputs& in,
      const RoutingOptions& routing,
      const FeedForwardOptions& options = {}) {
    return norm_experts(
        in.x, in.residual, {in.norm, kExpertsEpsilon}, in.parameters, routing, options);
  }
  static at::Tensor loss_of(const ExpertsResult& found, const at::Tensor& seed) {
    return (found.result * seed).sum() + (found.sum * seed.flip(-1)).sum() +
           found.balance * kBalance;
  }
};

TEST_P(ExpertsOpTest, ResultAndGradientsAreThoseOfPlainOperations) {
  for (const auto dtype : kDtypes) {
    for (const auto& one : cases()) {
      for (const bool recomputes : {false, true}) {
        SCOPED_TRACE(c10::str(dtype, " ", one.experts, " experts, ", one.top_k, recomputes));
        const auto in = inputs(one, dtype);
        const auto in64 = wide_inputs(in);
        const auto found = run(
            in, {one.top_k, one.norms}, {.recompute_gate_up = recomputes, .adds_sum = recomputes});
        const auto sum64 = stored(in64.x + in64.residual, dtype);
        const auto y64 = plain_norm(sum64, in64.norm, dtype);
        auto [result64, balance64] =
            plain_experts(y64, in64.parameters, {one.top_k, one.norms}, dtype);
        if (recomputes) result64 = sum64 + result64;
        EXPECT_EQ(found.result.scalar_type(), dtype);
        EXPECT_EQ(found.balance.scalar_type(), dtype == at::kDouble ? at::kDouble : at::kFloat);
        expect_close(found.result, result64, 3, "result");
        expect_close(found.balance, balance64, 3, "balance");
        const auto seed = random(in.x.sizes(), dtype);
        loss_of(found, seed).backward();
        loss_of({sum64, result64, balance64}, wide(seed)).backward();
        const auto wanted = in64.all();
        for (size_t i = 0; i < wanted.size(); ++i) {
          const auto [name, tensor] = in.all()[i];
          expect_close(tensor.grad(), wanted[i].second.grad(), 5, name);
        }
      }
    }
  }
}

TEST_P(ExpertsOpTest, WithoutANormTheRowsAreTheInput) {
  for (const auto dtype : kDtypes) {
    for (const auto& one : cases()) {
      SCOPED_TRACE(c10::str(dtype, " ", one.experts, " experts"));
      const auto in = inputs(one, dtype);
      const auto in64 = wide_inputs(in);
      const RoutingOptions routing{one.top_k, one.norms};
      const auto [result, balance] = experts(in.x, in.parameters, routing);
      const auto wanted = plain_experts(in64.x, in64.parameters, routing, dtype);
      expect_close(result, wanted.result, 3, "result");
      expect_close(balance, wanted.balance, 3, "balance");
      const auto seed = random(in.x.sizes(), dtype);
      ((result * seed).sum() + balance * kBalance).backward();
      ((wanted.result * wide(seed)).sum() + wanted.balance * kBalance).backward();
      for (const size_t i : {0u, 3u, 4u, 5u}) {
        const auto [name, tensor] = in.all()[i];
        expect_close(tensor.grad(), in64.all()[i].second.grad(), 5, name);
      }
    }
  }
}

TEST_P(ExpertsOpTest, ASecondBackwardAndARecomputeHaveTheSameBits) {
  const ExpertsCase one{{2, 70}, 64, 96, 6, 3};
  const auto in = inputs(one, at::kBFloat16);
  const auto seed = random({2, 70, 64}, at::kBFloat16);
  std::vector<at::Tensor> first;
  const auto compare = [&](const char* what) {
    for (size_t i = 0; i < in.all().size(); ++i) {
      const auto [name, tensor] = in.all()[i];
      if (first.size() == i) first.push_back(tensor.grad());
      EXPECT_TRUE(at::equal(tensor.grad(), first[i])) << name << " " << what;
      tensor.mutable_grad().reset();
    }
  };
  for (const bool recomputes : {false, true}) {
    const auto loss = loss_of(run(in, one.top_k, {.recompute_gate_up = recomputes}), seed);
    for (const bool last : {false, true}) {
      loss.backward({}, /*retain_graph=*/!last);
      compare(recomputes ? "recomputed" : last ? "the second backward" : "the first backward");
    }
  }
  loss_of(run(in, one.top_k, {.overwrites = true}), seed).backward();
  compare("in place");
  const auto skipped = run(in, one.top_k, {.skips_result = true});
  torch::autograd::backward(
      {skipped.result, skipped.sum, skipped.balance},
      {seed, seed.flip(-1), at::full({}, kBalance, skipped.balance.options())});
  compare("without a result");
}

TEST_P(ExpertsOpTest, AllTokensMayWantOneExpertAndTheOthersGetZeros) {
  const ExpertsCase one{{3, 20}, 16, 24, 5, 1};
  const auto in = inputs(one, at::kFloat);
  {
    const c10::NoGradGuard no_grad;
    in.x.abs_();
    in.residual.zero_();
    in.norm.fill_(1);
    in.parameters.router.fill_(-1);
    in.parameters.router[3].fill_(1);
  }
  const auto found = run(in, 1);
  const auto y = plain_norm(wide(in.x), wide(in.norm), at::kFloat);
  const auto dense = feed_forward(
      y.to(in.x.options()), in.parameters.gate_up[3].detach(), in.parameters.down[3].detach());
  expect_close(found.result, wide(dense), 20, "the feed-forward of one expert");
  found.result.sum().backward();
  for (int64_t e = 0; e < one.experts; ++e) {
    for (const auto& weight : {in.parameters.gate_up, in.parameters.down}) {
      EXPECT_EQ(weight.grad()[e].abs().max().item<double>() > 0, e == 3) << e;
    }
  }
}

TEST_P(ExpertsOpTest, FrozenParametersGetNoGradientAndTheOthersTheSame) {
  const ExpertsCase one{{2, 12}, 16, 24, 4, 2};
  const auto seed = random({2, 12, 16}, at::kFloat);
  auto in = inputs(one, at::kFloat);
  loss_of(run(in, 2), seed).backward();
  std::map<std::string, at::Tensor> wanted;
  for (const auto& [name, tensor] : in.all()) wanted[name] = tensor.grad();
  for (size_t frozen = 0; frozen < in.all().size(); ++frozen) {
    for (const auto& [name, tensor] : in.all()) tensor.mutable_grad().reset();
    auto some = in;
    at::Tensor* const places[] = {
        &some.x,
        &some.residual,
        &some.norm,
        &some.parameters.router,
        &some.parameters.gate_up,
        &some.parameters.down};
    *places[frozen] = places[frozen]->detach();
    loss_of(run(some, 2), seed).backward();
    for (const auto& [name, tensor] : some.all()) {
      if (!tensor.requires_grad()) continue;
      EXPECT_TRUE(at::equal(tensor.grad(), wanted[name])) << name << " without " << frozen;
    }
  }
}

TEST_P(ExpertsOpTest, TheBalanceAloneReachesTheRouterAndTheInput) {
  const ExpertsCase one{{2, 12}, 16, 24, 4, 2};
  const auto in = inputs(one, at::kFloat);
  const auto in64 = wide_inputs(in);
  run(in, 2).balance.backward();
  const auto y64 = plain_norm(in64.x + in64.residual, in64.norm, at::kFloat);
  plain_experts(y64, in64.parameters, 2, at::kFloat).balance.backward();
  for (const size_t i : {0u, 1u, 2u, 3u}) {
    const auto [name, tensor] = in.all()[i];
    expect_close(tensor.grad(), in64.all()[i].second.grad(), 5, name);
  }
  EXPECT_FALSE(in.parameters.down.grad().defined());
}

TEST_P(ExpertsOpTest, UnderAutocastProductsAreNarrowAndTheRouterIsNot) {
  const ExpertsCase one{{2, 9}, 32, 40, 4, 2};
  const auto in = inputs(one, at::kFloat);
  const auto in64 = wide_inputs(in);
  at::autocast::set_autocast_enabled(device().type(), true);
  at::autocast::set_autocast_dtype(device().type(), at::kBFloat16);
  const auto [result, balance] = experts(in.x, in.parameters, 2);
  at::autocast::set_autocast_enabled(device().type(), false);
  EXPECT_EQ(result.scalar_type(), at::kFloat);
  expect_close(balance, plain_experts(in64.x, in64.parameters, 2, at::kFloat).balance, 3, "wide");
  const auto& p = in64.parameters;
  const ExpertParameters narrow{
      p.router, stored(p.gate_up, at::kBFloat16), stored(p.down, at::kBFloat16)};
  const auto result64 =
      plain_experts(stored(in64.x, at::kBFloat16), narrow, 2, at::kBFloat16).result;
  expect_close(result.to(at::kBFloat16), result64, 3, "result");
  result.sum().backward();
  result64.sum().backward();
  for (const size_t i : {0u, 4u, 5u}) {
    const auto [name, tensor] = in.all()[i];
    EXPECT_EQ(tensor.grad().scalar_type(), at::kFloat);
    expect_close(tensor.grad().to(at::kBFloat16), in64.all()[i].second.grad(), 5, name);
  }
}

TEST_P(ExpertsOpTest, BatchesWithoutRowsHaveGradientsOfZero) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto in = inputs({{2, 0}, 16, 24, 4, 2}, dtype);
    const auto found = run(in, 2);
    EXPECT_EQ(found.result.sizes(), in.x.sizes());
    EXPECT_EQ(found.balance.item<double>(), 0);
    loss_of(found, at::empty_like(in.x)).backward();
    for (const auto& [name, tensor] : in.all()) {
      EXPECT_EQ(tensor.grad().abs().sum().item<double>(), 0) << name << dtype;
    }
  }
}

TEST_P(ExpertsOpTest, WrongShapesAreErrorsThatSayWhatFits) {
  const auto in = inputs({{2, 4}, 8, 16, 4, 2}, at::kFloat);
  const auto refused = [&](const char* text, auto change, int64_t top_k = 2) {
    auto changed = in;
    change(changed);
    try {
      run(changed, top_k);
      ADD_FAILURE() << text;
    } catch (const c10::ValueError& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  using I = ExpertsInputs;
  const char* shapes = "they are [.., S, D], [E, D], [E, 2F, D] and [E, D, F]";
  refused(shapes, [](I& one) { one.parameters.router = one.parameters.router.t(); });
  refused(shapes, [](I& one) { one.parameters.gate_up = one.parameters.gate_up.narrow(1, 0, 16); });
  refused(shapes, [](I& one) { one.parameters.down = one.parameters.down.narrow(0, 0, 3); });
  refused("gate_up of [4, 32, 8] and down of [3, 8, 16]", [](I& one) {
    one.parameters.down = one.parameters.down.narrow(0, 0, 3);
  });
  refused(
      "top_k = 5 and 4 experts: choose", [](I&) {}, 5);
  refused(
      "top_k = 0 and 4 experts: choose", [](I&) {}, 0);
  refused("the norm has one element", [](I& one) { one.norm = one.norm.narrow(0, 0, 3); });
}

SHERD_ON_DEVICES(ExpertsOpTest);

}  // namespace
}  // namespace sherd::testing
