// SPDX-License-Identifier: Apache-2.0
// Buffers of modules (running means, counters) are part of a checkpoint.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <optional>

#include "checkpoint/safetensors.h"
#include "files/temporary_folder.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/nn/linear.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/initialise.h"
#include "sherd/shard/module.h"

namespace sherd::testing {
namespace {

struct NormedBlockImpl : torch::nn::Module {
  explicit NormedBlockImpl(bool normed = true) {
    linear = register_module("linear", Linear(3, 4));
    if (normed) norm = register_module("norm", torch::nn::BatchNorm1d(4));
  }
  at::Tensor forward(const at::Tensor& x) { return norm ? norm(linear(x)) : linear(x); }
  Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
SHERD_MODULE(NormedBlock);

struct NormedModelImpl : torch::nn::Module {
  explicit NormedModelImpl(bool normed = true) {
    block = register_module("block", NormedBlock(normed));
    // Every second element: a buffer need not be contiguous.
    scales = register_buffer("scales", at::zeros({5, 2}, at::kHalf).select(1, 1));
    reset_parameters();
  }
  void reset_parameters() {
    const c10::NoGradGuard no_grad;
    scales.copy_(at::arange(5).to(scales));
  }
  at::Tensor forward(const at::Tensor& x) { return block(x).square().mean() + scales.sum(); }
  NormedBlock block{nullptr};
  at::Tensor scales;
};
SHERD_MODULE(NormedModel);

class CheckpointBuffers : public ::testing::Test {
 protected:
  NormedModel make(uint64_t seed, bool normed = true) {
    at::manual_seed(seed);
    return shard(NormedModel(normed));
  }
  NormedModel shard(NormedModel model) {
    const UnitOptions options{.mesh = Mesh(world_, {{"dp", 1}})};
    fully_shard(model->block, options);
    fully_shard(model, options);
    return model;
  }
  static void train(NormedModel& model, uint64_t seed) {
    at::manual_seed(seed);
    model(at::randn({6, 3}) + 2).backward();
    publish(*model);
  }
  static void expect_same(NormedModel& one, NormedModel& other) {
    const auto theirs = other->named_buffers();
    for (const auto& item : one->named_buffers()) {
      EXPECT_TRUE(at::equal(item.value(), theirs[item.key()])) << item.key();
    }
  }
  std::string problem(NormedModel& model, const LoadOptions& options = {}) const {
    try {
      load(*model, nullptr, folder_, options);
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "none";
  }

  TemporaryFolder place_;
  std::string folder_ = place_.file("step-1");
  World world_ = World::emulated({.size = 1});
};

TEST_F(CheckpointBuffers, ComeBackWithTheirOwnDtype) {
  auto model = make(1);
  train(model, 1);
  train(model, 2);
  {
    const c10::NoGradGuard no_grad;
    model->scales.mul_(3);
  }
  ASSERT_NE(model->block->norm->running_mean.abs().max().item<float>(), 0);
  save(*model, nullptr, folder_, {.export_dtype = at::kBFloat16});
  auto other = make(2);
  load(*other, nullptr, folder_);
  auto again = make(1);  // trained the same way
  train(again, 1);
  train(again, 2);
  {
    const c10::NoGradGuard no_grad;
    again->scales.mul_(3);
  }
  expect_same(again, other);
  const SafetensorsFile file(folder_ + "/model-00001-of-00001.safetensors");
  EXPECT_EQ(file.tensors().at("block.norm.running_var").dtype, at::kFloat);
  EXPECT_EQ(file.tensors().at("block.norm.num_batches_tracked").dtype, at::kLong);
  EXPECT_EQ(file.tensors().at("block.norm.weight").dtype, at::kBFloat16);
}

TEST_F(CheckpointBuffers, OneThatIsMissingOrOfAnotherShapeIsNamed) {
  auto without = make(1, false);
  save(*without, nullptr, folder_, {.slices = [](const std::string& name, at::IntArrayRef shape) {
    return std::vector<TensorSlice>{{name, shape.vec()}};
  }});
  // The norm's parameters are found; only its buffers are not there.
  auto model = make(2);
  const auto text =
      problem(model, {.slices = [](const std::string& name, at::IntArrayRef shape) {
                const bool parameter = name == "block.norm.weight" || name == "block.norm.bias";
                return parameter ? std::vector<TensorSlice>{{"block.linear.bias", {4}}}
                                 : std::vector<TensorSlice>{{name, shape.vec()}};
              }});
  EXPECT_NE(text.find("has no tensor 'block.norm."), std::string::npos) << text;
  EXPECT_NE(text.find("which buffer 'block.norm."), std::string::npos) << text;
  without->scales = without->register_buffer("more", at::zeros({2}));
  EXPECT_NE(problem(without).find("has no tensor 'more'"), std::string::npos);
}

TEST_F(CheckpointBuffers, OneWithoutSlicesIsNoPartOfIt) {
  const auto slices = [](const std::string& name, at::IntArrayRef shape) {
    return name == "scales" ? std::vector<TensorSlice>{}
                            : std::vector<TensorSlice>{{name, shape.vec()}};
  };
  auto model = make(1);
  save(*model, nullptr, folder_, {.slices = slices});
  const SafetensorsFile file(folder_ + "/model-00001-of-00001.safetensors");
  EXPECT_FALSE(file.tensors().contains("scales"));
  EXPECT_EQ(problem(model, {.slices = slices}), "none");
  EXPECT_NE(problem(model).find("has no tensor 'scales'"), std::string::npos);
}

TEST_F(CheckpointBuffers, IgnoredParametersAreSavedLikeThem) {
  const auto make_ignoring = [&](uint64_t seed) {
    at::manual_seed(seed);
    NormedModel model(true);
    const Mesh mesh(world_, {{"dp", 1}});
    fully_shard(model->block, {.mesh = mesh, .ignored = {"linear.*"}});
    fully_shard(model, {.mesh = mesh});
    return model;
  };
  auto model = make_ignoring(1);
  const auto& weight = model->block->linear->weight;
  EXPECT_FALSE(weight.is_meta());
  save(*model, nullptr, folder_);
  auto other = make_ignoring(2);
  ASSERT_FALSE(at::equal(other->block->linear->weight, weight));
  load(*other, nullptr, folder_);
  EXPECT_TRUE(at::equal(other->block->linear->weight, weight));
}

TEST_F(CheckpointBuffers, ABackgroundSaveHasThemAsTheyWereWhenItBegan) {
  auto model = make(1);
  train(model, 1);
  const auto mean = model->block->norm->running_mean.clone();
  BackgroundSave background;
  background.begin(*model, nullptr, folder_);
  train(model, 2);
  background.finish();
  auto other = make(2);
  load(*other, nullptr, folder_);
  EXPECT_TRUE(at::equal(other->block->norm->running_mean, mean));
}

TEST_F(CheckpointBuffers, ThoseOfAModelWithoutMemoryGetIt) {
  auto model = make(1);
  train(model, 1);
  save(*model, nullptr, folder_);
  NormedModel other{nullptr};
  {
    const MetaDevice meta;
    other = NormedModel(true);
  }
  other = shard(other);
  load(*other, nullptr, folder_);
  expect_same(model, other);
  EXPECT_TRUE(other->block->norm->running_mean.is_cpu());
}

TEST_F(CheckpointBuffers, ElementsFromElsewhereLeaveThemAlone) {
  auto model = make(1);
  model->register_buffer("late", at::empty({2}, at::kMeta));
  const auto before = model->scales.clone();
  load_elements(
      model, {}, [](const std::string&, int64_t, int64_t count) { return at::ones({count}); });
  EXPECT_TRUE(model->named_buffers()["late"].is_meta());
  EXPECT_TRUE(at::equal(model->scales, before));
}

TEST_F(CheckpointBuffers, OneWithoutValuesIsNotSaved) {
  NormedModel model{nullptr};
  {
    const MetaDevice meta;
    model = NormedModel(true);
  }
  model = shard(model);
  initialise(model, {.values = [](const std::string&, at::IntArrayRef) {
               return std::optional(InitialValues::constant(1));
             }});
  model->register_buffer("late", at::empty({2}, at::kMeta));
  try {
    save(*model, nullptr, folder_);
    FAIL();
  } catch (const c10::ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("buffer 'late'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace sherd::testing
