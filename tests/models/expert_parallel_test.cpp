// SPDX-License-Identifier: Apache-2.0
// Models whose experts are shared by ranks learn what one rank learns that has all of them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "checkpoint/shared_folder.h"
#include "models/training.h"
#include "ranks/rank_world.h"
#include "sherd/models/hybrid.h"
#include "sherd/models/moe.h"
#include "sherd/shard/diagnostics.h"
#include "sherd/shard/module.h"

namespace sherd::testing {
namespace {

constexpr int64_t kExpertCount = 12;

/// The mesh of the experts; `ep` ranks share them.
std::optional<Mesh> expert_mesh(int64_t ep, int64_t outer = 1) {
  if (ep == 1) return std::nullopt;
  const auto& world = test_world();
  const int64_t same = world.size() / outer / ep;
  if (outer == 1) return Mesh(world, {{"edp", same}, {"ep", ep}});
  return Mesh(world, {{"dp_outer", outer}, {"edp", same}, {"ep", ep}});
}

/// Makes a model whose experts are shared along the mesh.
using MakeSharing = std::function<Training::Make(const std::optional<Mesh>&)>;
struct SharingKind {
  std::string name;
  MakeSharing make;
};
void PrintTo(const SharingKind& kind, std::ostream* out) {
  *out << kind.name;
}

std::vector<SharingKind> sharing_kinds() {
  const ExpertOptions experts{.count = kExpertCount, .top_k = 2, .ffn = 24};
  const MambaOptions mamba{.state = 8, .head_dim = 16, .groups = 2, .chunk = 8};
  const auto shared = [](ExpertOptions options, const std::optional<Mesh>& mesh) {
    options.mesh = mesh;
    return options;
  };
  return {
      {"moe",
       [=](const auto& mesh) -> Training::Make {
         return [=](const auto& base) { return make_moe({base, shared(experts, mesh)}); };
       }},
      {"hybrid", [=](const auto& mesh) -> Training::Make {
         auto with_shared = experts;
         with_shared.shared_ffn = 16;
         return [=](const auto& base) {
           return make_hybrid({base, shared(with_shared, mesh), mamba, "M*ME-"});
         };
       }}};
}

/// Numbers of ranks that share experts, of those in a group.
std::vector<int64_t> sharing_ranks(int64_t outer) {
  std::vector<int64_t> result;
  const int64_t group = test_world().size() / outer;
  for (const int64_t ep : {int64_t{2}, int64_t{3}, int64_t{4}}) {
    if (test_world().size() % outer == 0 && group % ep == 0) result.push_back(ep);
  }
  return result;
}

class ExpertParallelTest : public ::testing::TestWithParam<SharingKind> {
 protected:
  static Training sharing(
      int64_t ep, const TrainingOptions& options, const LlamaOptions& base = {}) {
    return Training(GetParam().make(expert_mesh(ep, options.outer)), base, options);
  }
  static void expect_like_alone(
      int64_t ep, const TrainingOptions& options, const LlamaOptions& base = {}) {
    SCOPED_TRACE(c10::str("ep ", ep, " of ", test_world().size(), ", ", options.outer, " groups"));
    auto together = sharing(ep, options, base);
    const auto one_rank = World::emulated({.size = 1, .device = test_world().device()});
    Training alone(
        GetParam().make(std::nullopt), {},
        {.world = one_rank, .placement = Placement(Strategy::no_shard)});
    expect_learns_alike(together, alone);
  }
};

TEST_P(ExpertParallelTest, LearnsWhatItLearnsAlone) {
  for (const int64_t ep : sharing_ranks(1)) {
    expect_like_alone(ep, {.world = test_world()});
    expect_like_alone(
        ep, {.world = test_world(),
             .placement = Placement(Strategy::optim),
             .experts = Placement(Strategy::no_shard)});
    expect_like_alone(
        ep, {.world = test_world(),
             .placement = Placement(Strategy::no_shard),
             .experts = Placement(Strategy::optim_grads)});
  }
}

TEST_P(ExpertParallelTest, LearnsTheSameInSeveralGroups) {
  for (const int64_t ep : sharing_ranks(2)) {
    expect_like_alone(
        ep, {.world = test_world(),
             .placement = Placement(Strategy::optim_grads_params, Strategy::optim),
             .experts = Placement(Strategy::optim_grads_params, Strategy::no_shard),
             .outer = 2});
  }
}

TEST_P(ExpertParallelTest, LearnsTheSameWithRecompute) {
  for (const int64_t ep : sharing_ranks(1)) {
    expect_like_alone(ep, {.world = test_world()}, {.recompute = Recompute::full});
    expect_like_alone(ep, {.world = test_world()}, {.recompute = Recompute::selective});
  }
}

/// The gradients of experts, which only some ranks add up, are divided by the number of all ranks,
/// too. AdamW's updates would hardly show another divisor.
TEST_P(ExpertParallelTest, AnotherDivisorOfTheExpertsGradientsIsSeen) {
  const auto one_rank = World::emulated({.size = 1, .device = test_world().device()});
  Training alone(
      GetParam().make(std::nullopt), {},
      {.world = one_rank, .placement = Placement(Strategy::no_shard)});
  const auto wanted = alone.descend(2 * test_world().size());
  EXPECT_LT(wanted.back(), 0.999 * wanted.front());
  for (const int64_t ep : sharing_ranks(1)) {
    const auto distance = [&](double factor) {
      auto together = sharing(ep, {.world = test_world()});
      const auto losses = together.descend(2, factor);
      double largest = 0;
      for (size_t i = 0; i < losses.size(); ++i) {
        largest = std::max(largest, std::abs(losses[i] / wanted[i] - 1));
      }
      return largest;
    };
    EXPECT_LT(distance(1), 1e-6) << ep;
    // All ranks over those with the same experts.
    EXPECT_GT(distance(static_cast<double>(ep)), 1e-5) << ep;
  }
}

/// Per layer of experts: the counts, the rows there, the weights of the rows, and the results back;
/// in the backward the rows there again unless they were kept, their gradients there, and the
/// gradients of weights and rows back.
TEST_P(ExpertParallelTest, TheProgramOfADryRunHasTheExchangesOfTheRun) {
  for (const int64_t ep : sharing_ranks(1)) {
    for (const auto recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      SCOPED_TRACE(c10::str("ep ", ep, ", recompute ", static_cast<int>(recompute)));
      auto run = sharing(ep, {.world = test_world()}, {.recompute = recompute});
      const int64_t samples = 2 * test_world().size(), mine = 2 * test_world().rank();
      run.train(samples, mine, mine + 2);
      const auto world = World::emulated(
          {.rank = test_world().rank(), .size = test_world().size(), .device = at::kMeta});
      const Mesh experts(world, {{"edp", world.size() / ep}, {"ep", ep}});
      Training dry(GetParam().make(experts), {.recompute = recompute}, {.world = world});
      call(dry.model(), sample(0, 0, false, at::kMeta)).backward();
      const auto known = program(run.model()).exchanges();
      EXPECT_EQ(known, program(dry.model()).exchanges());
      std::map<ExchangePass, int64_t> calls;
      int64_t rows_there = 0;
      for (const auto& call : known) {
        for (const auto& one : call) {
          ++calls[one.pass];
          EXPECT_EQ(one.axis, "ep");
          EXPECT_EQ(one.ranks, ep);
          EXPECT_EQ(one.routed, one.kind == ExchangeKind::all_to_all);
          // Rows of fp32 for each token and each of its two experts.
          rows_there += one.bytes == kSeq * 2 * 32 * 4;
        }
      }
      const int64_t layers = std::string(GetParam().name) == "moe" ? 5 : 1;
      EXPECT_EQ(calls[ExchangePass::forward], 4 * layers);
      EXPECT_EQ(calls[ExchangePass::recompute] > 0, recompute == Recompute::full);
      EXPECT_EQ(
          calls[ExchangePass::backward], (recompute == Recompute::selective ? 4 : 3) * layers);
      EXPECT_GE(rows_there, 4 * layers);
      const int64_t all = calls[ExchangePass::forward] + calls[ExchangePass::recompute] +
                          calls[ExchangePass::backward];
      EXPECT_EQ(program(run.model()).traffic().exchanges.at("ep").calls, 2 * all);
    }
  }
}

using Parameters = std::map<std::string, at::Tensor>;

void expect_same(const Parameters& one, const Parameters& other) {
  ASSERT_EQ(one.size(), other.size());
  for (const auto& [name, whole] : one) {
    EXPECT_TRUE(at::equal(whole, other.at(name))) << name;
  }
}

TEST_P(ExpertParallelTest, HasTheSameInitialValues) {
  const auto alone = sharing(1, {.world = test_world()});
  for (const int64_t ep : sharing_ranks(1)) {
    const auto together = sharing(ep, {.world = test_world()});
    expect_same(together.parameters(), alone.parameters());
  }
}

TEST_P(ExpertParallelTest, IsLoadedWhereOtherRanksShareTheExperts) {
  const SharedFolder folder;
  const int64_t mine = 2 * test_world().rank(), samples = 2 * test_world().size();
  auto ways = sharing_ranks(1);
  ways.push_back(1);
  for (const int64_t ep : ways) {
    auto saved = sharing(ep, {.world = test_world()});
    saved.train(samples, mine, mine + 2);
    const auto place = folder.file(std::to_string(ep));
    save(saved.model(), saved.optimizer(), place, {.slices = saved.slices()});
    const auto weights = saved.parameters();
    const auto losses = saved.train(samples, mine, mine + 2);
    for (const int64_t other : ways) {
      SCOPED_TRACE(c10::str("saved with ep ", ep, ", loaded with ", other));
      auto loaded = sharing(
          other,
          {.world = test_world(),
           .placement = Placement(Strategy::optim_grads),
           .experts = Placement(other == ep ? Strategy::optim : Strategy::no_shard)},
          {.init_std = 0.5});
      load(loaded.model(), loaded.optimizer(), place, {.slices = loaded.slices()});
      expect_same(loaded.parameters(), weights);
      const auto again = loaded.train(samples, mine, mine + 2);
      for (size_t i = 0; i < losses.size(); ++i) {
        EXPECT_NEAR(again[i] / losses[i], 1, 1e-5) << "step " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, ExpertParallelTest, ::testing::ValuesIn(sharing_kinds()), [](const auto& one) {
      return one.param.name;
    });

TEST(ExpertParallelErrors, RanksMustDivideTheExperts) {
  if (test_world().size() == 1) return;
  const ExpertOptions experts{
      .count = 2 * test_world().size() + 1, .mesh = expert_mesh(test_world().size())};
  try {
    make_moe({{}, experts});
    FAIL();
  } catch (const c10::ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("must divide the experts"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace sherd::testing
