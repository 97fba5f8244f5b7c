// SPDX-License-Identifier: Apache-2.0
// Weights in fp8 with main weights in bf16, and several recipes in one model.
#include "nn/fp8_encoding.h"
#include "sherd/optim/adamw.h"
#include "sherd/shard/diagnostics.h"

namespace sherd::testing {
namespace {

/// The precision of each block of a stack.
using BlockPrecisions = std::vector<Precision>;

struct StackLearnt {
  std::vector<double> losses;
  NamedTensors weights;
};

/// Trains a stack of as many blocks, and asserts that the products of each read the encoding of its
/// whole main weights, in their dtype and by its recipe.
StackLearnt train_stack(
    const ShardingCase& way,
    const BlockPrecisions& precisions,
    const std::vector<std::string>& recipes) {
  auto model = fp8_stack(std::ssize(precisions));
  for (size_t i = 0; i < precisions.size(); ++i) {
    UnitOptions options{.mesh = mesh_for(way), .placement = way.placement};
    options.precision = precisions[i];
    fully_shard(model->blocks[i], options);
  }
  UnitOptions options{.mesh = mesh_for(way), .placement = way.placement};
  options.precision = Precision::recipe("bf16_o2");
  fully_shard(model, options);
  AdamW optimizer(model, {.lr = 1e-2});
  StackLearnt learnt;
  for (int64_t step = 0; step < 3; ++step) {
    std::map<std::string, at::Tensor> mains;
    for (auto& [name, tensor] : full_parameters(model)) mains[name] = tensor;
    std::vector<std::map<std::string, SeenWeight>> seen(precisions.size());
    for (size_t i = 0; i < seen.size(); ++i) {
      if (precisions[i].fp8 != Fp8::none) model->blocks[i]->seen = &seen[i];
    }
    const auto loss = model(fp8_input(step, test_world().rank()));
    learnt.losses.push_back(loss.item<double>());
    loss.backward();
    for (size_t i = 0; i < seen.size(); ++i) {
      model->blocks[i]->seen = nullptr;
      EXPECT_EQ(seen[i].size(), precisions[i].fp8 == Fp8::none ? 0u : 4u);
      for (const auto& [name, found] : seen[i]) {
        const auto full = c10::str("block", i, ".", name);
        const auto& main = mains.at(full);
        EXPECT_EQ(main.scalar_type(), precisions[i].main.value_or(at::kFloat));
        const auto wanted = encoded(main, recipes[i]);
        expect_same(found.forward, wanted.forward, c10::str(full, " in step ", step));
        expect_same(found.backward, wanted.backward, c10::str(full, ", backward"));
      }
    }
    optimizer.step();
  }
  const auto planned = program(model).bytes();
  const auto measured = allocated_bytes(model);
  EXPECT_EQ(measured.model_weights, planned.model_weights);
  EXPECT_EQ(measured.main_weights, planned.main_weights);
  EXPECT_EQ(measured.main_gradients, planned.main_gradients);
  EXPECT_EQ(measured.arena, planned.arena);
  learnt.weights = full_parameters(model);
  return learnt;
}

/// Every strategy, with the same bits where ranks are added in the same order.
void expect_strategies_alike(
    const BlockPrecisions& precisions, const std::vector<std::string>& recipes) {
  std::map<bool, StackLearnt> first;
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    auto learnt = train_stack(way, precisions, recipes);
    if (test_world().device().is_cuda()) continue;  // NCCL adds in an order of its own
    const auto known = first.find(way.two_axes);
    if (known == first.end()) {
      first[way.two_axes] = std::move(learnt);
      continue;
    }
    EXPECT_EQ(known->second.losses, learnt.losses);
    for (size_t i = 0; i < learnt.weights.size(); ++i) {
      EXPECT_TRUE(at::equal(known->second.weights[i].second, learnt.weights[i].second))
          << learnt.weights[i].first;
    }
  }
}

/// fp32 gradients in the main gradient and on the wire, so that strategies have the same bits.
TEST(Fp8Precisions, MainWeightsMayBeInBf16) {
  for (const auto& recipe : fp8_recipes()) {
    SCOPED_TRACE(recipe);
    auto precision = Precision::recipe(recipe);
    precision.main = at::kBFloat16;
    precision.gradient = precision.reduce = at::kFloat;
    expect_strategies_alike({precision, precision}, {recipe, recipe});
  }
}

TEST(Fp8Precisions, LayersOfOneModelMayHaveDifferentRecipes) {
  const std::vector<std::string> recipes{"mxfp8", "fp8", "bf16_o2", "fp8_block", "fp8_wgrad16"};
  BlockPrecisions precisions;
  for (const auto& recipe : recipes) precisions.push_back(Precision::recipe(recipe));
  expect_strategies_alike(precisions, recipes);
  // A weight in bf16 is not that of a layer in fp8, whose losses are others.
  auto other = precisions;
  other[2] = Precision::recipe("fp8");
  auto names = recipes;
  names[2] = "fp8";
  const auto way = way_called("optim_grads_params");
  EXPECT_NE(train_stack(way, precisions, recipes).losses, train_stack(way, other, names).losses);
}

TEST(Fp8Precisions, MainWeightsInBf16ChangeWhatIsEncoded) {
  auto narrow = Precision::recipe("fp8");
  narrow.main = at::kBFloat16;
  const auto way = way_called("optim_grads_params");
  EXPECT_NE(
      train_stack(way, {narrow}, {"fp8"}).losses,
      train_stack(way, {Precision::recipe("fp8")}, {"fp8"}).losses);
}

}  // namespace
}  // namespace sherd::testing
