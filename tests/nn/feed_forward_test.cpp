// SPDX-License-Identifier: Apache-2.0
#include "sherd/nn/functional.h"

#include <ATen/autocast_mode.h>

#include "nn/comparison.h"

namespace sherd::testing {
namespace {

struct FeedForwardCase {
  std::vector<int64_t> shape;  // of x, without its dim
  int64_t dim, width;
};
const std::vector<FeedForwardCase> kFeedForwardCases{
    {{1}, 8, 16}, {{3, 5}, 16, 40}, {{0}, 8, 16}, {{2, 1, 7}, 7, 11}, {{33}, 64, 136}};

at::Tensor plain_feed_forward(
    const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down, at::ScalarType dtype) {
  const auto halves = stored(x.matmul(gate_up.t()), dtype).chunk(2, -1);
  return stored(halves[0] * halves[0].sigmoid() * halves[1], dtype).matmul(down.t());
}

struct Weights {
  at::Tensor x, gate_up, down;
};

class FeedForwardTest : public OnDevice {
 protected:
  Weights weights(const FeedForwardCase& one, at::ScalarType dtype) const {
    auto shape = one.shape;
    shape.push_back(one.dim);
    const double scale = 1 / std::sqrt(static_cast<double>(one.dim));
    return {
        leaf(shape, dtype), leaf({2 * one.width, one.dim}, dtype, 2 * scale),
        leaf({one.dim, one.width}, dtype, scale)};
  }
};

TEST_P(FeedForwardTest, OutputAndGradientsAreThoseOfPlainOperations) {
  for (const auto dtype : kDtypes) {
    for (const auto& one : kFeedForwardCases) {
      for (const bool recomputes : {false, true}) {
        const auto [x, gate_up, down] = weights(one, dtype);
        const auto x64 = twin(x), gate_up64 = twin(gate_up), down64 = twin(down);
        const auto y = feed_forward(x, gate_up, down, recomputes);
        const auto y64 = plain_feed_forward(x64, gate_up64, down64, dtype);
        expect_close(y, y64, 2, "y");
        const auto seed = random(y.sizes(), dtype);
        y.backward(seed);
        y64.backward(wide(seed));
        expect_close(x.grad(), x64.grad(), 3, "gradient of x");
        expect_close(gate_up.grad(), gate_up64.grad(), 3, "gradient of gate and up");
        expect_close(down.grad(), down64.grad(), 3, "gradient of down");
      }
    }
  }
}

TEST_P(FeedForwardTest, ASecondBackwardAndARecomputeHaveTheSameBits) {
  const auto [x, gate_up, down] = weights({{70}, 64, 96}, at::kBFloat16);
  const auto seed = random({70, 64}, at::kBFloat16);
  std::vector<at::Tensor> first;
  for (const bool recomputes : {false, true}) {
    const auto y = feed_forward(x, gate_up, down, recomputes);
    for (const bool last : {false, true}) {
      for (const auto& one : {x, gate_up, down}) one.mutable_grad().reset();
      y.backward(seed, /*retain_graph=*/!last);
      if (first.empty()) first = {x.grad(), gate_up.grad(), down.grad()};
      EXPECT_TRUE(at::equal(x.grad(), first[0])) << recomputes << last;
      EXPECT_TRUE(at::equal(gate_up.grad(), first[1])) << recomputes << last;
      EXPECT_TRUE(at::equal(down.grad(), first[2])) << recomputes << last;
    }
  }
}

TEST_P(FeedForwardTest, FrozenWeightsGetNoGradient) {
  for (const bool recomputes : {false, true}) {
    const auto [x, gate_up, down] = weights({{32}, 16, 48}, at::kFloat);
    feed_forward(x, gate_up, down, recomputes).sum().backward();
    const auto gradient = x.grad();
    x.mutable_grad().reset();
    feed_forward(x, gate_up.detach(), down.detach(), recomputes).sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), gradient));
    const auto before = down.grad().clone();
    down.mutable_grad().reset();
    feed_forward(x.detach(), gate_up.detach(), down, recomputes).sum().backward();
    EXPECT_TRUE(at::equal(down.grad(), before));
  }
}

TEST_P(FeedForwardTest, UnderAutocastProductsAreNarrow) {
  const auto [x, gate_up, down] = weights({{9}, 32, 40}, at::kFloat);
  const auto x64 = twin(x), gate_up64 = twin(gate_up), down64 = twin(down);
  at::autocast::set_autocast_enabled(device().type(), true);
  at::autocast::set_autocast_dtype(device().type(), at::kBFloat16);
  const auto y = feed_forward(x, gate_up, down);
  at::autocast::set_autocast_enabled(device().type(), false);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  const auto y64 = plain_feed_forward(
      stored(x64, at::kBFloat16), stored(gate_up64, at::kBFloat16), stored(down64, at::kBFloat16),
      at::kBFloat16);
  expect_close(y, y64, 2, "y");
  y.sum().backward();
  y64.sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
  expect_close(x.grad().to(at::kBFloat16), x64.grad(), 3, "gradient of x");
  expect_close(gate_up.grad().to(at::kBFloat16), gate_up64.grad(), 3, "gradient of gate and up");
  expect_close(down.grad().to(at::kBFloat16), down64.grad(), 3, "gradient of down");
}

TEST_P(FeedForwardTest, WrongShapesAreErrors) {
  const auto [x, gate_up, down] = weights({{4}, 8, 16}, at::kFloat);
  EXPECT_THROW(feed_forward(x, down, gate_up), c10::Error);
  EXPECT_THROW(feed_forward(x, gate_up.narrow(0, 0, 16), down), c10::Error);
}

SHERD_ON_DEVICES(FeedForwardTest);

}  // namespace
}  // namespace sherd::testing
