// SPDX-License-Identifier: Apache-2.0
#include "sherd/nn/functional.h"

#include <c10/core/GradMode.h>

#include "kernels/nn/cross_entropy.h"
#include "nn/comparison.h"

namespace sherd::testing {
namespace {

struct CrossEntropyCase {
  int64_t rows, dim, vocab;
};
const std::vector<CrossEntropyCase> kCrossEntropyCases{{1, 8, 16}, {7, 16, 33},   {64, 24, 1000},
                                                       {0, 8, 16}, {5, 8, 20011}, {40, 32, 4104}};

at::Tensor plain_losses(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(
      logits, targets.cpu().masked_fill(targets.cpu() < 0, -100), {}, at::Reduction::None);
}

class CrossEntropyTest : public OnDevice {
 protected:
  /// Every fourth counts for nothing, by one number or another.
  at::Tensor targets(int64_t rows, int64_t vocab) const {
    auto result = at::randint(0, vocab, {rows}, at::kLong);
    for (int64_t i = 0; i < rows; i += 4) result[i] = i % 8 == 0 ? -100 : -1;
    if (rows > 1) result[1] = vocab - 1;
    return result.to(device());
  }
};

TEST_P(CrossEntropyTest, LossesAndGradientsOfLogitsAreThoseOfPlainOperations) {
  for (const auto dtype : kDtypes) {
    for (const auto& one : kCrossEntropyCases) {
      const auto math = dtype == at::kDouble ? at::kDouble : at::kFloat;
      const auto logits = random({one.rows, one.vocab}, dtype, 5);
      const auto chosen = targets(one.rows, one.vocab);
      const auto logits64 = twin(logits);
      const auto losses64 = plain_losses(logits64, chosen);
      losses64.sum().backward();
      const auto losses = at::empty({one.rows}, options(math)), log_sums = at::empty_like(losses);
      const auto untouched = logits.clone();
      cross_entropy_forward(untouched, chosen, losses, log_sums, /*into_gradients=*/false);
      EXPECT_TRUE(at::equal(untouched, logits));
      expect_rounded_once(losses, losses64, "losses");
      expect_rounded_once(log_sums, at::logsumexp(wide(logits), 1), "log sums");
      const auto at_once = logits.clone();
      cross_entropy_forward(at_once, chosen, losses, log_sums, /*into_gradients=*/true);
      expect_rounded_once(losses, losses64, "losses");
      expect_rounded_once(at_once, logits64.grad(), "gradients at once");
      const auto later = logits.clone();
      const auto factor = at::full({}, -0.3, options(math));
      cross_entropy_backward(later, chosen, log_sums, factor);
      expect_rounded_once(later, logits64.grad() * wide(factor), "gradients later");
    }
  }
}

TEST_P(CrossEntropyTest, LogitsOfAnySizeDontOverflow) {
  auto logits = at::tensor({1e4, -1e4, 9.9e3, 0.0, 88.0, -1e30, -INFINITY, 3.0}).view({1, 8});
  logits = at::cat({logits, -logits.clamp(-1e5, 1e5)}).to(options(at::kFloat));
  const auto chosen = at::tensor({2, 0}, at::kLong).to(device());
  const auto losses = at::empty({2}, options(at::kFloat)), log_sums = at::empty_like(losses);
  const auto losses64 = plain_losses(wide(logits), chosen);
  cross_entropy_forward(logits, chosen, losses, log_sums, /*into_gradients=*/true);
  expect_rounded_once(losses, losses64, "losses");
  EXPECT_TRUE(logits.isfinite().all().item<bool>());
}

TEST_P(CrossEntropyTest, WithTheHeadInEitherWayAndAnyChunk) {
  for (const auto dtype : kDtypes) {
    for (const auto& one : kCrossEntropyCases) {
      for (const auto& how :
           {HeadOptions{HeadLogits::keep}, HeadOptions{HeadLogits::recompute, 1},
            HeadOptions{HeadLogits::recompute, 7}, HeadOptions{HeadLogits::recompute, 4096}}) {
        if (how.chunk_rows == 1 && one.rows > 10) continue;
        const auto x = leaf({one.rows, one.dim}, dtype), weight = leaf({one.vocab, one.dim}, dtype);
        const auto chosen = targets(one.rows, one.vocab);
        const auto x64 = twin(x), weight64 = twin(weight);
        const auto loss = linear_cross_entropy(x, weight, chosen, how);
        EXPECT_EQ(loss.scalar_type(), dtype == at::kDouble ? at::kDouble : at::kFloat);
        const auto loss64 = plain_losses(stored(x64.matmul(weight64.t()), dtype), chosen).sum();
        // A logit that a product rounds to its other neighbour changes the loss by as much.
        EXPECT_NEAR(
            loss.item<double>(), loss64.item<double>(),
            loss64.item<double>() * (2 * rounding(dtype) + 1e-5));
        (loss * 0.37).backward();
        (loss64 * 0.37).backward();
        expect_close(x.grad(), x64.grad(), 4, "gradient of x");
        expect_close(weight.grad(), weight64.grad(), 4, "gradient of the weight");
        EXPECT_EQ(weight.grad().scalar_type(), dtype);
      }
    }
  }
}

TEST_P(CrossEntropyTest, OneOfTwoGradientsAndNone) {
  const auto x = leaf({9, 8}, at::kFloat), weight = leaf({40, 8}, at::kFloat);
  const auto chosen = targets(9, 40);
  linear_cross_entropy(x, weight, chosen).backward();
  for (const auto how : {HeadLogits::keep, HeadLogits::recompute}) {
    const auto alone = leaf({9, 8}, at::kFloat), other = leaf({40, 8}, at::kFloat);
    {
      const c10::NoGradGuard no_grad;
      alone.copy_(x);
      other.copy_(weight);
    }
    linear_cross_entropy(alone, weight.detach(), chosen, {how}).backward();
    linear_cross_entropy(x.detach(), other, chosen, {how}).backward();
    expect_close(alone.grad(), x.grad(), 2, "gradient of x");
    expect_close(other.grad(), weight.grad(), 2, "gradient of the weight");
    const c10::NoGradGuard no_grad;
    EXPECT_FALSE(linear_cross_entropy(x, weight, chosen, {how}).requires_grad());
  }
}

TEST_P(CrossEntropyTest, TwoRunsHaveTheSameBits) {
  const auto x = leaf({300, 64}, at::kBFloat16), weight = leaf({2000, 64}, at::kBFloat16);
  const auto chosen = targets(300, 2000);
  for (const auto how : {HeadLogits::keep, HeadLogits::recompute}) {
    std::vector<at::Tensor> first;
    for (int run = 0; run < 2; ++run) {
      x.mutable_grad().reset();
      weight.mutable_grad().reset();
      const auto loss = linear_cross_entropy(x, weight, chosen, {how, 128});
      loss.backward();
      if (run == 0) first = {loss.detach(), x.grad(), weight.grad()};
      EXPECT_TRUE(at::equal(loss, first[0]));
      EXPECT_TRUE(at::equal(x.grad(), first[1]));
      EXPECT_TRUE(at::equal(weight.grad(), first[2]));
    }
  }
}

TEST_P(CrossEntropyTest, WrongShapesAreErrors) {
  const auto x = leaf({9, 8}, at::kFloat), weight = leaf({40, 8}, at::kFloat);
  const auto chosen = targets(9, 40);
  EXPECT_THROW(linear_cross_entropy(x, leaf({40, 7}, at::kFloat), chosen), c10::Error);
  EXPECT_THROW(linear_cross_entropy(x, weight, targets(8, 40)), c10::Error);
  EXPECT_THROW(linear_cross_entropy(x, weight, chosen.to(at::kInt)), c10::Error);
  EXPECT_THROW(linear_cross_entropy(x, weight, chosen, {.chunk_rows = 0}), c10::Error);
}

SHERD_ON_DEVICES(CrossEntropyTest);

}  // namespace
}  // namespace sherd::testing
