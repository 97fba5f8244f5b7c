// SPDX-License-Identifier: Apache-2.0
// Models whose sequences are shared by ranks (tensor and context parallelism) learn what one rank
// learns that has whole sequences and weights.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "checkpoint/shared_folder.h"
#include "models/training.h"
#include "ranks/rank_world.h"
#include "shard/combinations.h"
#include "sherd/models/hybrid.h"
#include "sherd/models/llama.h"
#include "sherd/models/moe.h"
#include "sherd/models/pretrained.h"
#include "sherd/shard/module.h"

namespace sherd::testing {
namespace {

/// How the ranks of a world are used.
struct Sharing {
  int64_t outer = 1, cp = 1, tp = 1, ep = 1;
  friend bool operator==(const Sharing&, const Sharing&) = default;
  std::string text() const {
    return c10::str("dp_outer ", outer, ", cp ", cp, ", tp ", tp, ", ep ", ep);
  }
};

/// Several ways to share that fit the world, the most telling ones first: each two of ep, cp and tp
/// with each of their sizes together at 4 ranks, groups of ranks with one of them at 4, and with
/// two at 8.
std::vector<Sharing> some_sharings(bool with_experts) {
  if (!with_experts) {
    return {{1, 1, 2}, {1, 2, 1}, {1, 2, 2}, {2, 1, 2}, {1, 4, 1}, {2, 2, 2}};
  }
  return {{1, 1, 2, 2}, {1, 2, 1, 2}, {1, 2, 2, 4}, {2, 1, 2, 2}, {1, 1, 2, 1}, {1, 2, 1, 1},
          {1, 1, 1, 4}, {1, 4, 1, 1}, {2, 2, 2, 1}, {2, 1, 2, 4}, {2, 2, 1, 4}};
}

/// All of them.
std::vector<Sharing> every_sharing(bool with_experts) {
  auto result = some_sharings(with_experts);
  const int64_t ranks = test_world().size();
  for (const auto& levels : full_product({2, 2, 2, 3})) {
    const Sharing one{
        int64_t{1} << levels[0], int64_t{1} << levels[1], int64_t{1} << levels[2],
        int64_t{1} << levels[3]};
    // At 8 ranks only what does not fit 4.
    if (ranks > 4 && one.outer == 1) continue;
    if (!with_experts && one.ep > 1) continue;
    if (std::find(result.begin(), result.end(), one) == result.end()) result.push_back(one);
  }
  return result;
}

/// Those that fit the world.
std::vector<Sharing> all_sharings(bool with_experts) {
  auto result = test_all() ? every_sharing(with_experts) : some_sharings(with_experts);
  const int64_t ranks = test_world().size();
  std::erase_if(result, [&](const Sharing& one) {
    return ranks % (one.outer * one.cp * one.tp) != 0 || ranks / one.outer % one.ep != 0;
  });
  return result;
}

struct SharedKind {
  std::string name;
  std::function<Training::Make(const Sharing&)> make;
  LlamaOptions base{};
};
void PrintTo(const SharedKind& kind, std::ostream* out) {
  *out << kind.name;
}

std::optional<Mesh> mesh_of_experts(const Sharing& sharing) {
  if (sharing.ep == 1) return std::nullopt;
  const auto& world = test_world();
  const int64_t same = world.size() / sharing.outer / sharing.ep;
  if (sharing.outer == 1) return Mesh(world, {{"edp", same}, {"ep", sharing.ep}});
  return Mesh(world, {{"dp_outer", sharing.outer}, {"edp", same}, {"ep", sharing.ep}});
}

std::vector<SharedKind> shared_kinds() {
  const auto llama = [](const Sharing&) -> Training::Make {
    return [](const auto& base) { return make_llama(base); };
  };
  const auto moe = [](const Sharing& sharing) -> Training::Make {
    return [experts = mesh_of_experts(sharing)](const auto& base) {
      // A heavy balance, so that one of a part of a sequence is seen.
      return make_moe(
          {base,
           {.count = 12,
            .top_k = 2,
            .ffn = 24,
            .shared_ffn = 16,
            .balance = 0.2,
            .mesh = experts}});
    };
  };
  return {
      {"llama", llama},
      {"llama_with_bias", llama, {.qkv_bias = true}},
      {"llama_with_norms", llama, {.tie_embeddings = true, .qk_norm = true}},
      {"moe", moe},
      {"hybrid", [](const Sharing& sharing) -> Training::Make {
         return [experts = mesh_of_experts(sharing)](const auto& base) {
           const MambaOptions mamba{.state = 8, .head_dim = 16, .groups = 2, .chunk = 8};
           const ExpertOptions options{
               .count = 12, .top_k = 2, .ffn = 24, .shared_ffn = 16, .mesh = experts};
           return make_hybrid({base, options, mamba, "M*ME-", /*rope_fraction=*/0.5});
         };
       }}};
}

class SharedSequencesTest : public ::testing::TestWithParam<SharedKind> {
 protected:
  static bool has_experts() { return GetParam().name.find("llama") == std::string::npos; }
  static std::vector<Sharing> sharings() {
    auto result = all_sharings(has_experts());
    const bool varies = GetParam().name.starts_with("llama_");
    if (varies && !test_all() && result.size() > 3) result.resize(3);
    return result;
  }
  static Training shared(
      const Sharing& sharing,
      TrainingOptions options = {.world = test_world()},
      Recompute recompute = Recompute::none) {
    auto base = GetParam().base;
    base.recompute = recompute;
    options.outer = sharing.outer;
    options.cp = sharing.cp;
    options.tp = sharing.tp;
    return Training(GetParam().make(sharing), base, options);
  }
  struct Numbers {
    bool exact = false;
    int64_t steps = kSteps;
    double lr = 1e-2;
  };
  static Training alone(const Numbers& numbers) {
    const auto one_rank = World::emulated({.size = 1, .device = test_world().device()});
    return Training(
        GetParam().make({}), GetParam().base,
        {.world = one_rank,
         .placement = Placement(Strategy::no_shard),
         .exact = numbers.exact,
         .steps = numbers.steps,
         .lr = numbers.lr});
  }
  /// What one rank learns from as many samples as the groups of a world have, once for all tests.
  static const Learnt& learnt_alone(int64_t groups, const TrainingOptions& options) {
    static std::map<std::tuple<std::string, int64_t, int64_t>, Learnt> known;
    const auto [one, is_new] = known.try_emplace({GetParam().name, groups, options.steps});
    if (is_new) {
      auto reference = alone({.steps = options.steps, .lr = options.lr});
      one->second = learn_alone(reference, 2 * groups);
    }
    return one->second;
  }
  static void expect_like_alone(
      const Sharing& sharing,
      const TrainingOptions& options,
      Recompute recompute = Recompute::none) {
    SCOPED_TRACE(sharing.text());
    auto together = shared(sharing, options, recompute);
    expect_learns_alike(together, learnt_alone(together.groups(), options));
  }
};

TEST_P(SharedSequencesTest, LearnsInTenStepsWhatItLearnsAlone) {
  for (const auto& sharing : sharings()) {
    const auto outer = sharing.outer == 1 ? Strategy::no_shard : Strategy::optim;
    expect_like_alone(
        sharing, {.world = test_world(),
                  .placement = Placement(Strategy::optim_grads_params, outer),
                  .experts = Placement(Strategy::optim_grads_params),
                  .steps = 10,
                  .lr = 3e-3});
  }
}

/// With each strategy, and another of what ranks have parts of.
TEST_P(SharedSequencesTest, LearnsTheSameWithAllStrategies) {
  if (!test_all()) return;
  for (const auto& sharing : sharings()) {
    for (const auto strategy : {Strategy::no_shard, Strategy::optim, Strategy::optim_grads}) {
      for (const auto of_parts :
           {Strategy::no_shard, Strategy::optim, Strategy::optim_grads_params}) {
        expect_like_alone(
            sharing, {.world = test_world(),
                      .placement = Placement(strategy),
                      .experts = Placement(of_parts)});
      }
    }
  }
}

TEST_P(SharedSequencesTest, HasTheGradientsThatItHasAlone) {
  for (const auto& sharing : sharings()) {
    SCOPED_TRACE(sharing.text());
    auto together = shared(sharing, {.world = test_world(), .exact = true});
    const auto norms = together.gradient_norms(2);
    const auto expected = alone({.exact = true}).gradient_norms(2 * together.groups());
    ASSERT_EQ(norms.size(), expected.size());
    for (const auto& [name, norm] : expected) {
      EXPECT_NEAR(norms.at(name) / norm, 1, 1e-11) << (name.empty() ? "all parameters" : name);
    }
  }
}

TEST_P(SharedSequencesTest, LearnsTheSameWithOtherStrategies) {
  const auto strategies = {Strategy::no_shard, Strategy::optim, Strategy::optim_grads};
  auto of_parts = strategies.begin() + 1;
  for (const auto strategy : strategies) {
    expect_like_alone(
        sharings().front(),
        {.world = test_world(), .placement = Placement(strategy), .experts = Placement(*of_parts)});
    if (++of_parts == strategies.end()) of_parts = strategies.begin();
  }
}

TEST_P(SharedSequencesTest, LearnsTheSameWithRecompute) {
  for (const auto& sharing : sharings()) {
    expect_like_alone(sharing, {.world = test_world()}, Recompute::full);
    expect_like_alone(sharing, {.world = test_world()}, Recompute::selective);
    if (!test_all()) break;
  }
}

using NamedTensors = std::map<std::string, at::Tensor>;

void expect_equal(const NamedTensors& one, const NamedTensors& other) {
  ASSERT_EQ(one.size(), other.size());
  for (const auto& [name, whole] : one) EXPECT_TRUE(at::equal(whole, other.at(name))) << name;
}

TEST_P(SharedSequencesTest, HasTheSameInitialValues) {
  const auto wanted = alone({}).parameters();
  for (const auto& sharing : sharings()) {
    SCOPED_TRACE(sharing.text());
    expect_equal(shared(sharing).parameters(), wanted);
  }
}

TEST_P(SharedSequencesTest, IsLoadedWhereSequencesAreSharedOtherwise) {
  const SharedFolder folder;
  // A step has the same samples, whichever ranks share them.
  const auto train = [](Training& one) {
    return one.train_shared(test_world().size() / one.groups());
  };
  auto ways = sharings();
  ways.emplace_back();
  if (!test_all() && ways.size() > 3) ways.erase(ways.begin() + 2, ways.end() - 1);
  for (const auto& sharing : ways) {
    auto saved = shared(sharing);
    train(saved);
    const auto place = folder.file(sharing.text());
    save(saved.model(), saved.optimizer(), place, {.slices = saved.slices()});
    const auto weights = saved.parameters();
    const auto losses = train(saved);
    for (const auto& other : ways) {
      SCOPED_TRACE(c10::str("saved with ", sharing.text(), ", loaded with ", other.text()));
      auto loaded = shared(
          other, {.world = test_world(),
                  .placement = Placement(Strategy::optim_grads),
                  .experts = Placement(Strategy::optim)});
      load(loaded.model(), loaded.optimizer(), place, {.slices = loaded.slices()});
      expect_equal(loaded.parameters(), weights);
      if (saved.model().config()) {
        auto third = shared(other);
        load_weights(third.model(), place);
        expect_equal(third.parameters(), weights);
      }
      const auto again = train(loaded);
      for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(again[i] / losses[i], 1, 1e-5) << i;
    }
  }
}

TEST_P(SharedSequencesTest, RanksWithoutSamplesJoinWithTargetsThatAreIgnored) {
  const auto sharing = sharings().front();
  auto training = shared(sharing);
  auto batch = sample(0, 0, false, test_world().device());
  const int64_t groups = test_world().size() / (sharing.cp * sharing.tp);
  const bool idle = test_world().rank() / (sharing.cp * sharing.tp) == groups - 1;
  if (idle) batch.targets.fill_(-100);
  micro_batches(training.model(), 1);
  const auto loss = call(training.model(), training.model().part_of(batch));
  if (idle) {
    EXPECT_EQ(loss.item<double>(), 0);
  }
  loss.backward();
  training.optimizer().step();
  if (!has_experts()) {  // whose balance has gradients without targets
    EXPECT_EQ(training.optimizer().gradient_norm() > 0, groups > 1);
  }
  EXPECT_TRUE(training.model().exchanges());
}

TEST_P(SharedSequencesTest, ValidatesWithoutGradients) {
  const at::NoGradGuard no_grad;
  const auto whole = sample(0, 3, false, test_world().device());
  auto one = alone({});
  const auto wanted = call(one.model(), whole).item<double>();
  for (const auto& sharing : sharings()) {
    SCOPED_TRACE(sharing.text());
    auto training = shared(sharing);
    const auto loss = call(training.model(), training.model().part_of(whole));
    auto total = loss.to(at::kDouble).view({1});
    test_world().communicator().all_reduce(total, Reduction::sum()).synchronize();
    EXPECT_NEAR(total.item<double>() / (wanted * static_cast<double>(training.groups())), 1, 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, SharedSequencesTest, ::testing::ValuesIn(shared_kinds()), [](const auto& one) {
      return one.param.name;
    });

TEST(SharedSequencesInNarrowNumbers, LearnAboutTheSame) {
  const auto make = [](const auto& base) { return make_llama(base); };
  const auto one_rank = World::emulated({.size = 1, .device = test_world().device()});
  for (const char* recipe : {"bf16_o1", "bf16_o2", "fp8"}) {
    for (const auto& sharing : all_sharings(/*with_experts=*/false)) {
      if (sharing.cp * sharing.tp > 2) continue;
      SCOPED_TRACE(c10::str(recipe, ", ", sharing.text()));
      Training together(
          make, {},
          {.world = test_world(),
           .outer = sharing.outer,
           .cp = sharing.cp,
           .tp = sharing.tp,
           .recipe = recipe});
      Training alone(
          make, {},
          {.world = one_rank, .placement = Placement(Strategy::no_shard), .recipe = recipe});
      const auto losses = together.train_shared(2);
      const int64_t samples = 2 * together.groups();
      const auto wanted = alone.train(samples, 0, samples);
      // Elements of fp8 have 3 bits: where sums differ in their last bit, some are rounded
      // otherwise.
      const double near = recipe == std::string("fp8") ? 5e-2 : 1e-2;
      for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i] / wanted[i], 1, near) << i;
    }
  }
}

}  // namespace
}  // namespace sherd::testing
