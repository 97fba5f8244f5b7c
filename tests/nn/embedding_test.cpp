// SPDX-License-Identifier: Apache-2.0
#include "sherd/nn/functional.h"

#include "kernels/nn/embedding.h"
#include "nn/comparison.h"

namespace sherd::testing {
namespace {

struct EmbeddingCase {
  int64_t tokens, vocab, dim;
};
/// Tokens that come once, often, or not at all.
const std::vector<EmbeddingCase> kEmbeddingCases{{1, 1, 8},      {50, 3, 7},    {0, 5, 8},
                                                 {40, 1000, 64}, {300, 20, 40}, {3, 4, 1536}};

class EmbeddingTest : public OnDevice {
 protected:
  at::Tensor tokens(at::IntArrayRef shape, int64_t vocab) const {
    return at::randint(0, vocab, shape, at::kLong).to(device());
  }
};

TEST_P(EmbeddingTest, RowsAndGradientAreThoseOfPlainOperations) {
  for (const auto dtype : kDtypes) {
    for (const auto& one : kEmbeddingCases) {
      const auto weight = leaf({one.vocab, one.dim}, dtype);
      const auto weight64 = twin(weight);
      const auto chosen = tokens({one.tokens}, one.vocab);
      const auto y = sherd::embedding(weight, chosen);
      EXPECT_TRUE(at::equal(y, weight.index_select(0, chosen)));
      const auto seed = random({one.tokens, one.dim}, dtype);
      y.backward(seed);
      weight64.index_select(0, chosen.cpu()).backward(wide(seed));
      expect_rounded_once(weight.grad(), weight64.grad(), "gradient");
    }
  }
}

TEST_P(EmbeddingTest, TheGradientIsWrittenOrAddedInTheTargetsDtype) {
  for (const auto dtype : kDtypes) {
    for (const auto target_dtype : kDtypes) {
      for (const auto& one : kEmbeddingCases) {
        for (const bool add : {false, true}) {
          for (const int64_t offset : {0, 1}) {  // off an aligned address, too
            const auto buffer = random({offset + one.vocab * one.dim}, target_dtype);
            const auto target =
                buffer.narrow(0, offset, one.vocab * one.dim).view({one.vocab, one.dim});
            const auto before = wide(target);
            const auto gradient = random({one.tokens, one.dim}, dtype);
            const auto chosen = tokens({one.tokens}, one.vocab);
            auto wanted = add ? before : at::zeros_like(before);
            wanted = wanted.index_add(0, chosen.cpu(), wide(gradient));
            embedding_gradient({gradient, chosen, target, add});
            const auto slack = math_error(dtype) * (wanted.numel() ? wanted.abs().max() : wanted);
            const auto allowed = wanted.abs() * (1.01 * rounding(target_dtype)) + slack;
            EXPECT_TRUE(((wide(target) - wanted).abs() <= allowed + 6e-8).all().item<bool>())
                << dtype << " into " << target_dtype << (add ? ", added, " : ", ") << one.tokens;
          }
        }
      }
    }
  }
}

TEST_P(EmbeddingTest, MoreDimsOtherStridesAndFrozenWeights) {
  const auto weight = leaf({11, 16}, at::kFloat);
  const auto weight64 = twin(weight);
  const auto chosen = tokens({3, 5}, 11).t();
  const auto seed = random({16, 5, 3}, at::kFloat).permute({1, 2, 0});
  const auto y = sherd::embedding(weight, chosen);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({5, 3, 16}));
  y.backward(seed);
  at::embedding(weight64, chosen.cpu()).backward(wide(seed));
  expect_rounded_once(weight.grad(), weight64.grad(), "gradient");
  EXPECT_FALSE(sherd::embedding(weight.detach(), chosen).requires_grad());
  EXPECT_THROW(sherd::embedding(weight, chosen.to(at::kInt)), c10::Error);
}

TEST_P(EmbeddingTest, TwoRunsHaveTheSameBits) {
  const auto weight = leaf({17, 64}, at::kFloat);
  const auto chosen = tokens({5000}, 17);
  const auto seed = random({5000, 64}, at::kFloat);
  at::Tensor first;
  for (int run = 0; run < 3; ++run) {
    weight.mutable_grad().reset();
    sherd::embedding(weight, chosen).backward(seed);
    if (run == 0) first = weight.grad();
    EXPECT_TRUE(at::equal(weight.grad(), first));
  }
}

SHERD_ON_DEVICES(EmbeddingTest);

}  // namespace
}  // namespace sherd::testing
