// SPDX-License-Identifier: Apache-2.0
// A model with weights in fp8 that is saved under one strategy and loaded under another, on as many
// ranks or on one: the same main weights, moments and bytes, and the same losses.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "checkpoint/safetensors.h"
#include "checkpoint/shared_folder.h"
#include "nn/fp8_encoding.h"
#include "shard/combinations.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/optim/adamw.h"

namespace sherd::testing {
namespace {

constexpr int64_t kSaved = 2;    // steps before the checkpoint
constexpr int64_t kFurther = 3;  // and after it

/// A model in training on the samples of all ranks of the test world, whichever ranks it has.
class ReshardedModel {
 public:
  ReshardedModel(const World& world, const ShardingCase& way, const std::string& recipe)
      : world_(world), model_(fp8_stack()) {
    UnitOptions options = options_of(way, recipe);
    if (world.size() == 1) options.mesh = Mesh(world, {{"dp", 1}});
    // Losses of all ranks are added up, so a backward has the same numbers on any number of ranks.
    shard_fp8(model_, options, {.loss = Loss::per_token});
    micro_batches(model_, samples());
    optimizer_.emplace(model_, AdamWOptions{.lr = 3e-3});
  }
  /// Of each step, the sum over all samples.
  std::vector<double> train(int64_t first, int64_t last) {
    std::vector<double> losses;
    for (int64_t step = first; step < last; ++step) {
      double total = 0;
      for (int64_t i = 0; i < samples(); ++i) {
        const auto number = world_.size() == 1 ? i : world_.rank();
        const auto loss = model_(fp8_input(step, number));
        total += loss.item<double>();
        loss.backward();
      }
      auto sum = at::full({1}, total, at::TensorOptions(at::kDouble)).to(world_.device());
      world_.communicator().all_reduce(sum, Reduction::sum()).synchronize();
      losses.push_back(sum.item<double>());
      optimizer_->step({.tokens = samples()});
    }
    return losses;
  }
  void save_to(const std::string& folder) { save(model_, *optimizer_, folder); }
  void load_from(const std::string& folder) { load(model_, *optimizer_, folder); }
  NamedTensors weights() const { return full_parameters(model_); }
  /// The bytes that products read, by name.
  std::map<std::string, SeenWeight> bytes() {
    std::map<std::string, SeenWeight> result;
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < model_->blocks.size(); ++i) {
      std::map<std::string, SeenWeight> seen;
      model_->blocks[i]->seen = &seen;
      model_(fp8_input(0, 0));
      model_->blocks[i]->seen = nullptr;
      for (auto& [name, one] : seen) result[c10::str(i, ".", name)] = one;
    }
    return result;
  }

 private:
  int64_t samples() const { return world_.size() == 1 ? test_world().size() : 1; }
  World world_;
  Fp8Stack model_;
  std::optional<AdamW> optimizer_;
};

/// All tensors of a checkpoint, moments by the file's kind.
std::map<std::string, at::Tensor> saved_tensors(const std::string& folder) {
  std::map<std::string, at::Tensor> result;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto file = entry.path().filename().string();
    if (!file.ends_with(".safetensors")) continue;
    const auto kind = file.substr(0, file.find('-'));
    const SafetensorsFile tensors(entry.path().string());
    for (const auto& [name, about] : tensors.tensors()) {
      result[kind + " " + name] = tensors.read(name);
    }
  }
  return result;
}

class Fp8Resharding : public ::testing::TestWithParam<std::string> {
 protected:
  const World one_rank = World::emulated({.size = 1, .device = test_world().device()});

  ~Fp8Resharding() override {
    if (test_world().rank() == 0) std::printf("later losses at most %.1e apart\n", largest_);
  }

  static std::vector<ShardingCase> ways() {
    if (test_all()) return all_ways();
    return {way_called("optim"), way_called("optim_grads_params")};
  }

  /// Loads it under another strategy or number of ranks, and compares with the model that goes on.
  void expect_goes_on(
      const std::string& folder,
      const World& world,
      const ShardingCase& way,
      const std::map<std::string, SeenWeight>& bytes,
      const std::vector<double>& losses) {
    SCOPED_TRACE(c10::str("loaded with ", way.name, " on ", world.size(), " ranks"));
    ReshardedModel loaded(world, way, GetParam());
    loaded.train(7, 8);  // other weights and moments
    loaded.load_from(folder);
    const auto found = loaded.bytes();
    ASSERT_EQ(found.size(), bytes.size());
    for (const auto& [name, one] : bytes) expect_same(found.at(name).forward, one.forward, name);
    const auto again = c10::str(folder, "-", way.name, world.size(), "-again");
    if (world.size() > 1 || test_world().rank() == 0) {
      loaded.save_to(again);
      const auto wanted = saved_tensors(folder), ours = saved_tensors(again);
      ASSERT_EQ(ours.size(), wanted.size());
      EXPECT_TRUE(wanted.contains("first_moment block0.down"));
      for (const auto& [name, tensor] : wanted) {
        EXPECT_TRUE(at::equal(ours.at(name), tensor)) << name;
      }
    }
    const auto further = loaded.train(kSaved, kSaved + kFurther);
    EXPECT_NEAR(further[0] / losses[0], 1, 1e-5);
    for (size_t i = 1; i < losses.size(); ++i) {
      // Gradients are added up in another order; where that changes the last digit of a main
      // weight, its encoding may be another number of 3 bits.
      EXPECT_NEAR(further[i] / losses[i], 1, 1e-3) << i;
      largest_ = std::max(largest_, std::abs(further[i] / losses[i] - 1));
    }
  }

 private:
  double largest_ = 0;
};

TEST_P(Fp8Resharding, SavedOnAllRanksItGoesOnUnderOtherStrategiesAndOnOneRank) {
  const SharedFolder folder;
  for (const auto& way : ways()) {
    SCOPED_TRACE("saved with " + way.name);
    ReshardedModel saved(test_world(), way, GetParam());
    saved.train(0, kSaved);
    const auto place = folder.file(way.name);
    saved.save_to(place);
    const auto bytes = saved.bytes();
    const auto losses = saved.train(kSaved, kSaved + kFurther);
    expect_goes_on(place, one_rank, way_called("no_shard"), bytes, losses);
    for (const auto& other : ways()) {
      if (other.name != way.name) expect_goes_on(place, test_world(), other, bytes, losses);
    }
  }
}

TEST_P(Fp8Resharding, SavedOnOneRankItGoesOnOnAllRanks) {
  const SharedFolder folder;
  ReshardedModel saved(one_rank, way_called("no_shard"), GetParam());
  saved.train(0, kSaved);
  const auto place = folder.file("one");
  if (test_world().rank() == 0) saved.save_to(place);
  const auto bytes = saved.bytes();
  const auto losses = saved.train(kSaved, kSaved + kFurther);
  test_world().communicator().barrier().synchronize();
  for (const auto& way : ways()) expect_goes_on(place, test_world(), way, bytes, losses);
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, Fp8Resharding, ::testing::ValuesIn(fp8_recipes()), [](const auto& one) {
      return one.param;
    });

}  // namespace
}  // namespace sherd::testing
