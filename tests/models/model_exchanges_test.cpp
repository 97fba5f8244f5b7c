// SPDX-License-Identifier: Apache-2.0
// What the programs of models know of exchanges, against what the communicators of an emulated
// world see.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "comm/emulated/recorded_calls.h"
#include "models/training.h"
#include "sherd/models/hybrid.h"
#include "sherd/models/llama.h"
#include "sherd/models/moe.h"
#include "sherd/shard/diagnostics.h"

namespace sherd::testing {
namespace {

/// A model whose ranks share sequences or experts.
struct ExchangingKind {
  std::string name;
  int64_t cp = 1, tp = 1, ep = 1;
};
void PrintTo(const ExchangingKind& kind, std::ostream* out) {
  *out << kind.name;
}

/// One exchange: collective, purpose, ranks, bytes.
using Seen = std::tuple<int64_t, std::string, int64_t, int64_t>;

class ModelExchanges : public ::testing::TestWithParam<ExchangingKind> {
 protected:
  static World emulated() { return World::emulated({.rank = 1, .size = 4}); }

  /// All experts are chosen by each token, so that as many rows travel as the program expects.
  static Training::Make make(const World& world) {
    const auto& kind = GetParam();
    ExpertOptions experts{.count = 4, .top_k = 4, .ffn = 32, .shared_ffn = 32};
    if (kind.ep > 1) experts.mesh = Mesh(world, {{"edp", 4 / kind.ep}, {"ep", kind.ep}});
    return [experts, name = kind.name](const LlamaOptions& base) -> std::shared_ptr<LanguageModel> {
      if (name.starts_with("llama")) return make_llama(base);
      if (name.starts_with("moe")) return make_moe({base, experts});
      const MambaOptions mamba{.state = 8, .head_dim = 16, .groups = 2, .chunk = 8};
      return make_hybrid({base, experts, mamba, "M*ME-"});
    };
  }
  static Training training(const World& world, const std::string& recipe, Recompute recompute) {
    const auto& kind = GetParam();
    LlamaOptions base;
    base.recompute = recompute;
    return Training(
        make(world), base,
        {.world = world, .cp = kind.cp, .tp = kind.tp, .recipe = recipe, .steps = 1});
  }

  static std::vector<Seen> known(const Program& program) {
    std::vector<Seen> result;
    for (const auto& call : program.exchanges()) {
      for (const auto& one : call) {
        result.emplace_back(
            static_cast<int64_t>(collective_of(one.kind)), "exchange " + one.purpose, one.ranks,
            one.bytes);
      }
    }
    std::sort(result.begin(), result.end());
    return result;
  }
  static std::vector<Seen> recorded(const World& world) {
    std::vector<Seen> result;
    for (const auto& call : recorded_calls(world.communicator(), /*forget=*/true)) {
      if (!call.communicator.starts_with("exchange ")) continue;
      result.emplace_back(
          static_cast<int64_t>(call.collective), call.communicator, call.ranks, call.bytes);
    }
    std::sort(result.begin(), result.end());
    return result;
  }
};

TEST_P(ModelExchanges, TheProgramHasTheCallsAndBytesOfTheCommunicators) {
  for (const char* recipe : {"", "bf16_o2", "fp8"}) {
    for (const auto recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      SCOPED_TRACE(c10::str(recipe, ", recompute ", static_cast<int>(recompute)));
      const auto world = emulated();
      auto model = training(world, recipe, recompute);
      for (int i = 0; i < 2; ++i) {
        recorded(world);
        model.train(4, 0, 1);
        const auto seen = recorded(world);
        EXPECT_EQ(known(program(model.model())), seen);
        EXPECT_FALSE(seen.empty());
      }
      // The plan counts the same bytes by axis.
      int64_t bytes = 0, planned = 0;
      for (const auto& one : known(program(model.model()))) bytes += std::get<3>(one);
      for (const auto& [axis, calls] : program(model.model()).traffic().exchanges) {
        planned += calls.bytes;
      }
      EXPECT_EQ(planned, bytes);
    }
  }
}

/// In the forward rows of a norm are gathered in 8 bits, each with a scale.
TEST_P(ModelExchanges, RowsInFp8TakeOneByteAnElement) {
  if (GetParam().tp == 1) return;
  const auto gathered = [](const char* recipe) {
    const auto world = emulated();
    auto model = training(world, recipe, Recompute::none);
    model.train(4, 0, 1);
    std::map<int64_t, int64_t> calls;  // in forwards, by bytes
    for (const auto& call : program(model.model()).exchanges()) {
      for (const auto& one : call) {
        const bool is_forward = one.pass == ExchangePass::forward && one.axis == "tp";
        if (is_forward && one.kind == ExchangeKind::gather_rows) ++calls[one.bytes];
      }
    }
    return calls;
  };
  const int64_t rows = kSeq / GetParam().cp, dim = 32;
  const auto wide = gathered("bf16_o2"), narrow = gathered("fp8");
  // Attention and feed-forwards of five layers; in a hybrid one of each, and shared experts.
  const int64_t products = GetParam().name.starts_with("llama") ? 10 : 3;
  EXPECT_GE(wide.at(rows * dim * 2), products);
  EXPECT_EQ(narrow.at(rows * (dim + 4)), products);
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    ModelExchanges,
    ::testing::Values(
        ExchangingKind{"llama_cp2_tp2", 2, 2},
        ExchangingKind{"moe_ep2", 1, 1, 2},
        ExchangingKind{"hybrid_cp2_tp2_ep2", 2, 2, 2},
        ExchangingKind{"hybrid_tp2_ep4", 1, 2, 4}),
    [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace sherd::testing
