// SPDX-License-Identifier: Apache-2.0
#include "sherd/nn/functional.h"

#include <torch/csrc/autograd/custom_function.h>

#include "nn/comparison.h"

namespace sherd::testing {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RopeCase {
  int64_t batch, positions, heads, kv_heads, head_dim;
};
const std::vector<RopeCase> kRopeCases{{1, 1, 1, 1, 8},  {2, 5, 4, 2, 64},   {1, 33, 8, 8, 128},
                                       {3, 4, 5, 1, 6},  {2, 3, 1, 1, 2},    {0, 4, 2, 1, 16},
                                       {2, 0, 2, 1, 16}, {1, 2, 32, 8, 128}, {1, 3, 2, 1, 600}};

class RopeTest : public OnDevice {
 protected:
  /// With a few positions more than are used.
  Rope rope(const RopeCase& one) const {
    const auto positions = at::arange(one.positions + 2, at::kDouble);
    const auto frequency = at::arange(one.head_dim / 2, at::kDouble).mul(-0.1).exp();
    const auto angle = at::outer(positions, frequency);
    return {
        one.heads, one.kv_heads, angle.cos().to(at::kFloat).to(device()),
        angle.sin().to(at::kFloat).to(device())};
  }
  static std::vector<int64_t> shape(const RopeCase& one) {
    return {one.batch, one.positions, (one.heads + 2 * one.kv_heads) * one.head_dim};
  }
};

/// Queries, keys and values side by side, the first two turned, as blocks/rotary.cpp does it.
at::Tensor plain_rope(const at::Tensor& packed, const Rope& rope, const RopeCase& one) {
  const auto heads = packed.unflatten(-1, {-1, one.head_dim});
  const auto turning = heads.narrow(2, 0, one.heads + one.kv_heads);
  const auto table = [&](const at::Tensor& half) {
    return at::cat({wide(half), wide(half)}, -1).narrow(0, 0, one.positions).unsqueeze(1);
  };
  const auto halves = turning.chunk(2, -1);
  const auto turned =
      turning * table(rope.cosine) + at::cat({-halves[1], halves[0]}, -1) * table(rope.sine);
  return at::cat({turned, heads.narrow(2, one.heads + one.kv_heads, one.kv_heads)}, 2).flatten(2);
}

/// Notes where the gradient that reaches it lies.
struct GradientRecorder : torch::autograd::Function<GradientRecorder> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    seen = gradients[0].data_ptr();
    return {gradients[0].clone()};
  }
  inline static void* seen = nullptr;
};
/// Returns ones as its input's gradient, and notes where they lie.
struct Source : torch::autograd::Function<Source> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    const auto& like = gradients[0];
    const auto result = spreads ? at::empty_strided(like.sizes(), {0, 0, 0}, like.options())
                                : at::empty(like.sizes(), like.options());
    at::empty({0}, like.options()).set_(result.storage()).fill_(1);
    given = result.data_ptr();
    if (keeps) kept = result;
    return {result};
  }
  inline static void* given = nullptr;
  inline static bool keeps = false;
  inline static bool spreads = false;  // one element in place of all
  inline static at::Tensor kept;
};

TEST_P(RopeTest, RotatesQueriesAndKeysInPlaceAndTheirGradientsBack) {
  for (const auto dtype : kDtypes) {
    for (const auto& one : kRopeCases) {
      const auto angles = rope(one);
      const auto x = leaf(shape(one), dtype);
      const auto x64 = twin(x);
      const auto packed = x.clone();
      const auto y = rope_(packed, angles);
      EXPECT_EQ(y.data_ptr(), packed.data_ptr());
      const auto y64 = plain_rope(x64, angles, one);
      expect_rounded_once(y, y64, "turned");
      const auto seed = random(shape(one), dtype);
      y.backward(seed);
      y64.backward(wide(seed));
      expect_rounded_once(x.grad(), x64.grad(), "gradient");
    }
  }
}

TEST_P(RopeTest, PartsAreViewsAndTheirGradientsOnePackedTensor) {
  for (const auto dtype : kDtypes) {
    for (const auto& one : kRopeCases) {
      const auto angles = rope(one);
      const auto x = leaf(shape(one), dtype);
      const auto x64 = twin(x);
      const auto packed = x.clone();
      const auto parts = rope_split_(packed, angles);
      const auto y64 = plain_rope(x64, angles, one).unflatten(-1, {-1, one.head_dim});
      const auto parts64 = y64.split_with_sizes({one.heads, one.kv_heads, one.kv_heads}, 2);
      at::Tensor loss, loss64;
      for (size_t i = 0; i < 3; ++i) {
        expect_rounded_once(parts[i], parts64[i], "part");
        EXPECT_EQ(parts[i].storage().data(), packed.storage().data());
        // Gradients come heads first, as from attention.
        const auto seed = random(parts[i].transpose(1, 2).sizes(), dtype);
        const auto term = (parts[i].transpose(1, 2) * seed).sum();
        const auto term64 = (parts64[i].transpose(1, 2) * wide(seed)).sum();
        loss = i == 0 ? term : loss + term;
        loss64 = i == 0 ? term64 : loss64 + term64;
      }
      loss.backward();
      loss64.backward();
      expect_rounded_once(x.grad(), x64.grad(), "gradient");
    }
  }
}

TEST_P(RopeTest, APartWithoutAGradientHasNone) {
  const RopeCase one{2, 5, 4, 2, 8};
  const auto angles = rope(one);
  const auto x = leaf(shape(one), at::kFloat);
  const auto x64 = twin(x);
  rope_split_(x.clone(), angles)[1].sum().backward();
  plain_rope(x64, angles, one).unflatten(-1, {-1, one.head_dim}).narrow(2, 4, 2).sum().backward();
  expect_rounded_once(x.grad(), x64.grad(), "gradient");
}

TEST_P(RopeTest, AStridedViewIsRotatedInPlace) {
  const RopeCase one{2, 3, 2, 1, 16};
  const auto angles = rope(one);
  for (const int64_t offset : {0, 16, 3}) {
    const auto whole = random({2, 6, 64 + 32}, at::kFloat);
    const auto before = whole.clone();
    const auto view = whole.narrow(1, 1, 3).narrow(2, offset, 64);
    const auto wanted = plain_rope(wide(view), angles, one);
    rope_(view, angles);
    expect_rounded_once(view, wanted, "view");
    view.copy_(before.narrow(1, 1, 3).narrow(2, offset, 64));
    EXPECT_TRUE(at::equal(whole, before)) << "nothing else was touched";
  }
  // In the graph, too.
  const auto x = leaf({2, 6, 64}, at::kDouble);
  const auto x64 = twin(x);
  const auto copy = x.clone();
  rope_(copy.narrow(1, 1, 3), angles);
  const auto seed = random({2, 6, 64}, at::kDouble);
  copy.backward(seed);
  at::cat(
      {x64.narrow(1, 0, 1), plain_rope(x64.narrow(1, 1, 3), angles, one), x64.narrow(1, 4, 2)}, 1)
      .backward(wide(seed));
  expect_rounded_once(x.grad(), x64.grad(), "gradient");
}

TEST_P(RopeTest, AGradientWithNoOtherOwnerIsRotatedInPlace) {
  const RopeCase one{1, 4, 2, 1, 16};
  const auto angles = rope(one);
  for (const auto& [keeps, spreads] : {std::pair(false, false), {true, false}, {false, true}}) {
    Source::keeps = keeps;
    Source::spreads = spreads;
    const auto x = leaf(shape(one), at::kFloat);
    const auto x64 = twin(x);
    Source::apply(rope_(GradientRecorder::apply(x), angles)).sum().backward();
    plain_rope(x64, angles, one).sum().backward();
    expect_rounded_once(x.grad(), x64.grad(), "gradient");
    EXPECT_EQ(Source::given == GradientRecorder::seen, !keeps && !spreads);
    if (keeps) {
      EXPECT_TRUE(at::equal(Source::kept, at::ones_like(x))) << "is not ours to change";
    }
    Source::kept.reset();
  }
}

TEST_P(RopeTest, ABackwardThatNeedsTheOverwrittenValuesIsAnError) {
  const RopeCase one{1, 4, 2, 1, 16};
  for (const bool split : {false, true}) {
    const auto x = leaf(shape(one), at::kFloat);
    const auto packed = x * 2;
    const auto square = packed * packed;  // keeps packed
    if (split) {
      rope_split_(packed, rope(one));
    } else {
      rope_(packed, rope(one));
    }
    EXPECT_THROW(square.sum().backward(), c10::Error);
  }
  const auto x = leaf(shape(one), at::kFloat);
  EXPECT_THROW(rope_(x, rope(one)), c10::Error) << "a leaf can't be written";
}

TEST_P(RopeTest, WrongShapesAreErrors) {
  const RopeCase one{1, 4, 2, 1, 16};
  auto angles = rope(one);
  EXPECT_THROW(rope_(random({1, 4, 65}, at::kFloat), angles), c10::Error);
  EXPECT_THROW(rope_(random({1, 7, 64}, at::kFloat), angles), c10::Error) << "six are known";
  EXPECT_THROW(rope_(random({64, 4, 1}, at::kFloat).permute({2, 1, 0}), angles), c10::Error);
  angles.sine = angles.sine.to(at::kDouble);
  EXPECT_THROW(rope_(random({1, 4, 64}, at::kFloat), angles), c10::Error);
}

SHERD_ON_DEVICES(RopeTest);

}  // namespace
}  // namespace sherd::testing
