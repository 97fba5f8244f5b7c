// SPDX-License-Identifier: Apache-2.0
// Attention over ranks that have chunks of each sequence, against attention over whole sequences.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "comm/emulated/recorded_calls.h"
#include "ranks/rank_world.h"
#include "sherd/nn/functional.h"
#include "sherd/shard/initialise.h"

namespace sherd::testing {
namespace {

class ContextAttentionTest : public ::testing::Test {
 protected:
  const int64_t size = test_world().size();
  const c10::Device device = test_world().device();
  Mesh mesh{test_world(), {{"cp", size}}};
  Exchange ranks{mesh, "cp", "test"};

  static at::Tensor drawn(at::IntArrayRef shape, uint64_t seed) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    return at::randn(shape, generator, at::kDouble);
  }
  static RotaryTables tables(int64_t positions, int64_t head_dim) {
    const auto angles = drawn({positions, head_dim / 2}, 9).to(at::kFloat);
    return {angles.cos(), angles.sin()};
  }
  RotaryTables part_of(const RotaryTables& whole) const {
    if (!whole.cosine.defined()) return whole;
    return {
        context_part(whole.cosine, 0, ranks).to(device),
        context_part(whole.sine, 0, ranks).to(device)};
  }

  void expect_like_whole(
      const AttentionShape& shape,
      int64_t sequences,
      int64_t chunk,
      bool rotates,
      at::ScalarType dtype) {
    SCOPED_TRACE(c10::str(
        shape.heads, " heads, ", shape.kv_heads, " of keys, ", sequences, " sequences, chunks of ",
        chunk, rotates ? ", rotated, " : ", ", dtype));
    const int64_t length = 2 * size * chunk, width = shape.heads * shape.head_dim;
    const auto rotary = rotates ? tables(length, shape.head_dim) : RotaryTables{};
    const int64_t packed = width + 2 * shape.kv_heads * shape.head_dim;
    const auto values = drawn({sequences, length, packed}, 1).to(dtype);
    const auto weights = drawn({sequences, length, width}, 2).to(dtype);
    const auto wanted_x = values.to(at::kDouble).clone().set_requires_grad(true);
    const auto wanted = attention(wanted_x.clone(), shape, rotary);
    torch::autograd::backward({wanted}, {weights.to(at::kDouble)});

    const auto x = context_part(values, 1, ranks).to(device).set_requires_grad(true);
    const auto y = context_attention(x.clone(), shape, part_of(rotary), ranks);
    EXPECT_EQ(y.scalar_type(), dtype);
    torch::autograd::backward({y}, {context_part(weights, 1, ranks).to(device)});
    expect_near(y, context_part(wanted.detach(), 1, ranks));
    expect_near(x.grad(), context_part(wanted_x.grad(), 1, ranks));
  }

  static void expect_near(const at::Tensor& found, const at::Tensor& wanted) {
    ASSERT_EQ(found.sizes(), wanted.sizes());
    const auto dtype = found.scalar_type();
    const double step = dtype == at::kBFloat16 ? 2e-2 : dtype == at::kFloat ? 2e-6 : 1e-13;
    const auto error = (found.detach().cpu().to(at::kDouble) - wanted).abs().max();
    EXPECT_LE(error.item<double>(), step * wanted.abs().max().item<double>());
  }
};

TEST_F(ContextAttentionTest, IsThatOfWholeSequences) {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    if (device.is_cuda() && dtype != at::kBFloat16) continue;  // refused; see below
    expect_like_whole({.heads = 3, .kv_heads = 1}, 2, 5, true, dtype);
    expect_like_whole({.heads = 6, .kv_heads = 3, .head_dim = 16}, 1, 4, true, dtype);
    expect_like_whole({.heads = 5, .kv_heads = 5}, 2, 1, false, dtype);
  }
}

TEST_F(ContextAttentionTest, ARankHasAChunkFromBothEnds) {
  const auto part = context_part(at::arange(4 * size), 0, ranks);
  const int64_t rank = ranks.rank(), last = 2 * (2 * size - 1 - rank);
  if (size == 1) return;
  EXPECT_TRUE(at::equal(part, at::tensor({2 * rank, 2 * rank + 1, last, last + 1})));
}

TEST_F(ContextAttentionTest, GathersOnceEachWay) {
  const auto world = World::emulated({.rank = 1, .size = 4});
  const Exchange four(Mesh(world, {{"cp", 4}}), "cp", "context");
  const AttentionShape shape{.heads = 4, .kv_heads = 2};
  recorded_calls(world.communicator(), /*forget=*/true);
  const auto x = drawn({1, 6, 64}, 1).to(at::kFloat).set_requires_grad(true);
  context_attention(x.clone(), shape, {}, four).sum().backward();
  const auto calls = recorded_calls(world.communicator());
  const int64_t bytes = 4 * 6 * (2 * 2 * 8) * 4;  // keys and values of all ranks, in fp32
  const std::vector<RecordedCall> wanted{
      {Collective::all_gather, "exchange context", 4, bytes, at::kFloat},
      {Collective::all_gather, "exchange context", 4, bytes, at::kFloat},
      {Collective::reduce_scatter, "exchange context", 4, bytes, at::kFloat}};
  ASSERT_EQ(calls.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(calls[i], wanted[i]) << i;
}

TEST_F(ContextAttentionTest, OnTheMetaDeviceThereAreShapes) {
  const auto world = World::emulated({.rank = 2, .size = 4});
  const Exchange four(Mesh(world, {{"cp", 4}}), "cp", "context");
  const auto x = at::empty({2, 6, 64}, at::TensorOptions(at::kBFloat16).device(at::kMeta))
                     .set_requires_grad(true);
  const auto y = context_attention(x.clone(), {.heads = 4, .kv_heads = 2}, {}, four);
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{2, 6, 32}));
  y.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
}

TEST_F(ContextAttentionTest, ArgumentsThatDontFitAreErrorsWithTheRemedy) {
  if (size == 1) return;
  const auto refused = [&](const std::string& text, const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << text;
    } catch (const c10::ValueError& error) {
      const std::string what = error.what_without_backtrace();
      EXPECT_EQ(what.rfind("[nn] ", 0), 0u) << what;
      EXPECT_NE(what.find(text), std::string::npos) << what;
    }
  };
  const auto x = at::ones({1, 4, 24}, device);
  refused("without a causal mask", [&] { context_attention(x, {.causal = false}, {}, ranks); });
  refused("a multiple of", [&] { context_attention(x.narrow(1, 0, 3), {}, {}, ranks); });
  refused("a multiple of", [&] { context_part(at::ones({2 * size + 1}), 0, ranks); });
  if (device.is_cuda()) {
    refused("it needs bf16 or fp16", [&] { context_attention(x, {}, {}, ranks); });
  }
}

}  // namespace
}  // namespace sherd::testing
