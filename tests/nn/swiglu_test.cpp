// SPDX-License-Identifier: Apache-2.0
#include "sherd/nn/functional.h"

#include "kernels/nn/swiglu.h"
#include "nn/comparison.h"

namespace sherd::testing {
namespace {

const std::vector<std::pair<int64_t, int64_t>> kSwigluShapes{
    {1, 8}, {3, 7}, {0, 16}, {5, 1}, {2, 64}, {17, 688}, {3, 2056}, {9, 4100}};

at::Tensor plain_swiglu(const at::Tensor& gate_up) {
  const auto halves = gate_up.chunk(2, -1);
  return halves[0] * halves[0].sigmoid() * halves[1];
}

class SwigluTest : public OnDevice {};

TEST_P(SwigluTest, ActivationAndGradientAreThoseOfPlainOperations) {
  for (const auto dtype : kDtypes) {
    for (const auto& [rows, width] : kSwigluShapes) {
      const auto x = leaf({rows, 2 * width}, dtype, 3);
      const auto x64 = twin(x);
      const auto y = swiglu(x);
      const auto y64 = plain_swiglu(x64);
      expect_rounded_once(y, y64, "activation");
      const auto seed = random({rows, width}, dtype);
      y.backward(seed);
      y64.backward(wide(seed));
      expect_rounded_once(x.grad(), x64.grad(), "gradient");
    }
  }
}

TEST_P(SwigluTest, TheBackwardGivesTheActivationAgainAndMayWriteOverItsInputs) {
  for (const auto dtype : kDtypes) {
    for (const auto& [rows, width] : kSwigluShapes) {
      const auto gate_up = random({rows, 2 * width}, dtype, 3);
      const auto gradient = random({rows, width}, dtype);
      const auto activation = at::empty_like(gradient), wanted = at::empty_like(gate_up);
      swiglu_forward(gate_up, activation);
      swiglu_backward(gradient, gate_up, wanted);
      const auto apart = at::empty_like(gate_up), again = at::empty_like(gradient);
      swiglu_backward(gradient, gate_up, apart, again);
      EXPECT_TRUE(at::equal(apart, wanted));
      EXPECT_TRUE(at::equal(again, activation));
      swiglu_backward(gradient, gate_up, gate_up, gradient);
      EXPECT_TRUE(at::equal(gate_up, wanted)) << dtype << rows << "x" << width;
      EXPECT_TRUE(at::equal(gradient, activation)) << dtype << rows << "x" << width;
    }
  }
}

TEST_P(SwigluTest, LargeGatesNeitherOverflowNorVanish) {
  const auto gate = at::tensor({-200.0, -100.0, -89.0, -30.0, 0.0, 30.0, 89.0, 200.0});
  const auto x =
      at::cat({gate, at::full({8}, 2.0)}).to(options(at::kFloat)).set_requires_grad(true);
  const auto x64 = twin(x);
  const auto y = swiglu(x);
  const auto y64 = plain_swiglu(x64);
  expect_rounded_once(y, y64, "activation");
  y.sum().backward();
  y64.sum().backward();
  expect_rounded_once(x.grad(), x64.grad(), "gradient");
}

TEST_P(SwigluTest, MoreDimsAndOtherStrides) {
  const auto base = leaf({32, 3, 4}, at::kBFloat16);
  const auto base64 = twin(base);
  const auto y = swiglu(base.permute({1, 2, 0}));
  EXPECT_EQ(y.sizes(), at::IntArrayRef({3, 4, 16}));
  y.sum().backward();
  plain_swiglu(base64.permute({1, 2, 0})).sum().backward();
  expect_rounded_once(base.grad(), base64.grad(), "gradient");
  EXPECT_THROW(swiglu(random({2, 3}, at::kFloat)), c10::Error) << "three are no two halves";
}

SHERD_ON_DEVICES(SwigluTest);

}  // namespace
}  // namespace sherd::testing
