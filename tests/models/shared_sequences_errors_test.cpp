// SPDX-License-Identifier: Apache-2.0
// What does not fit ranks that share sequences is named.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>

#include "models/training.h"
#include "ranks/rank_world.h"
#include "sherd/models/hybrid.h"
#include "sherd/models/llama.h"
#include "sherd/models/vlm.h"

namespace sherd::testing {
namespace {

void expect_refused(
    const std::string& text,
    const std::function<void()>& make,
    const std::string& scope = "[models") {
  try {
    make();
    ADD_FAILURE() << text;
  } catch (const c10::ValueError& error) {
    const std::string what = error.what_without_backtrace();
    EXPECT_EQ(what.rfind(scope, 0), 0u) << what;
    EXPECT_NE(what.find(text), std::string::npos) << what;
  }
}

/// At 4 ranks {dp 2, tp 2} on three of them, and {dp 1, tp 4} on the last.
TEST(SharedSequencesErrors, ARankWithAnotherTpIsNamedOnAllRanks) {
  const auto& world = test_world();
  const int64_t odd = world.size() - 1, tp = world.rank() == odd ? world.size() : world.size() / 2;
  const auto begin = std::chrono::steady_clock::now();
  expect_refused(
      c10::str(", rank ", odd, " one of dp=1 × cp=1 × tp=", world.size()),
      [&] {
        const auto make = [](auto base) {
          base.kv_heads = base.heads;
          return make_llama(base);
        };
        Training(make, {}, {.world = world, .tp = tp});
      },
      "[comm.mesh] rank 0 makes a mesh of dp=");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(SharedSequencesErrors, NameTheSizesAndTheRemedy) {
  const auto& world = test_world();
  const int64_t ranks = world.size();
  const Mesh tensor(world, {{"dp", 1}, {"tp", ranks}});
  const Mesh context(world, {{"dp", 1}, {"cp", ranks}});
  const LlamaOptions base{.heads = 8, .kv_heads = 8, .mesh = tensor};
  const auto with = [&](const auto& change) {
    auto options = base;
    change(options);
    return options;
  };
  expect_refused(
      "the ranks must divide both", [&] { make_llama(with([](auto& o) { o.kv_heads = 1; })); });
  expect_refused(
      "a feed-forward of width 33", [&] { make_llama(with([](auto& o) { o.ffn = 33; })); });
  expect_refused("qk_norm_across on", [&] {
    make_llama(with([](auto& o) { o.qk_norm = o.qk_norm_across = true; }));
  });
  expect_refused("in the order dp_outer, dp, cp, tp", [&] {
    make_llama(with([&](auto& o) { o.mesh = Mesh(world, {{"tp", ranks}, {"dp", 1}}); }));
  });
  expect_refused("LlamaOptions::mesh has dp", [&] {
    make_llama(with([&](auto& o) { o.mesh = Mesh(world, {{"tp", ranks}}); }));
  });
  expect_refused("cannot share sequences", [&] { make_vlm({base, {}}); });
  expect_refused("a Mamba-2 with 1 heads", [&] {
    HybridOptions hybrid;
    hybrid.base = base;
    hybrid.mamba.head_dim = 2 * base.dim;
    hybrid.pattern = "M";
    make_hybrid(hybrid);
  });
  const auto batch = [](int64_t length) {
    return Batch{at::zeros({1, length}, at::kLong), at::zeros({1, length}, at::kLong)};
  };
  expect_refused(
      "the length must be a multiple of", [&] { make_llama(base)->part_of(batch(2 * ranks + 1)); });
  expect_refused("2 · cp · tp", [&] {
    make_llama(with([&](auto& o) { o.mesh = context; }))->part_of(batch(3 * ranks));
  });
  expect_refused("sliding window of 8", [&] {
    auto model = make_llama(with([&](auto& o) { o.sliding_window = 8; }));
    model->forward(model->part_of(batch(16 * ranks)));
  });
}

}  // namespace
}  // namespace sherd::testing
