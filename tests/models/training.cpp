// SPDX-License-Identifier: Apache-2.0
#include "models/training.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <set>

#include "ranks/rank_world.h"
#include "shard/glob.h"
#include "sherd/shard/diagnostics.h"
#include "sherd/shard/initialise.h"
#include "sherd/shard/module.h"

namespace sherd::testing {
namespace {

/// Of each two samples, which are one rank's, one may have an image: no rank's in the first step,
/// then every second rank's.
bool has_image(int64_t step, int64_t number) {
  return step > 0 && number % 2 == 1 && (step + number / 2) % 2 == 1;
}

}  // namespace

Batch sample(int64_t step, int64_t number, bool sees, c10::Device device) {
  auto random =
      at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(1 + step * 100 + number));
  const auto row = at::randint(1, kVocab, {1, kSeq + 1}, random, at::kLong).to(device);
  Batch batch{row.narrow(1, 0, kSeq).contiguous(), row.narrow(1, 1, kSeq).clone()};
  if (!sees || !has_image(step, number)) return batch;
  batch.images = at::rand({1, 3, 8, 8}, random).to(device);
  batch.image_places = at::arange(5, 9, batch.tokens.options());
  batch.image_patches = at::arange(0, 4, batch.tokens.options());
  batch.targets.narrow(1, 4, 4).fill_(-100);
  return batch;
}

Training::Training(const Make& make, LlamaOptions base, const TrainingOptions& options)
    : world_(options.world),
      sees_(options.sees),
      sharing_(options.cp * options.tp),
      steps_(options.steps) {
  base.vocab = kVocab;
  base.dim = 32;
  base.layers = 5;
  base.heads = 4;
  base.kv_heads = 2;
  base.head_dim = 8;
  base.ffn = 64;
  base.init_std = 0.2;
  const int64_t ranks = world_.size(), outer = options.outer;
  if (sharing_ > 1) {
    std::vector<Axis> axes{
        {"dp", ranks / outer / sharing_}, {"cp", options.cp}, {"tp", options.tp}};
    if (outer > 1) axes.insert(axes.begin(), {"dp_outer", outer});
    base.mesh = Mesh(world_, axes);
  }
  {
    const auto usual = at::get_default_dtype();
    if (options.exact) at::set_default_dtype(caffe2::TypeMeta::Make<double>());
    const MetaDevice meta;
    model_ = make(base);
    at::set_default_dtype(usual);
  }
  UnitOptions all{.placement = options.placement, .rules = model_->rules()};
  all.mesh = outer == 1 ? Mesh(world_, {{"dp", ranks}})
                        : Mesh(world_, {{"dp_outer", outer}, {"dp", ranks / outer}});
  for (auto& rule : all.rules) rule.placement = options.experts;
  if (!options.recipe.empty()) {
    all.precision = Precision::recipe(options.recipe);
    all.precision.fp8 = Fp8::none;
  }
  for (const auto& unit : model_->units()) {
    auto with_products = all;
    if (!options.recipe.empty()) add_products(*unit, options.recipe, with_products.rules);
    fully_shard(unit, with_products);
  }
  fully_shard(model_, all);
  initialise(*model_, {.seed = 5, .values = [this](const auto& name, auto shape) {
                         return model_->initial_values(name, shape);
                       }});
  // With a small epsilon AdamW's first updates have the gradient's sign, which is that of
  // rounding errors where a gradient is near 0.
  if (!options.exact) optimizer_.emplace(*model_, AdamWOptions{.lr = options.lr, .eps = 1e-4});
}

void Training::add_products(
    const torch::nn::Module& unit,
    const std::string& recipe,
    std::vector<ParameterRule>& rules) const {
  const int64_t multiple = recipe == "fp8_block" ? 128 : recipe == "mxfp8" ? 32 : 16;
  for (const auto& item : unit.named_parameters()) {
    const auto& weight = item.value();
    const auto products = model_->products();
    const bool is_one = std::any_of(products.begin(), products.end(), [&](const auto& pattern) {
      return matches_glob(pattern, "unit." + item.key());
    });
    if (!is_one || weight.size(0) % multiple != 0 || weight.size(1) % multiple != 0) continue;
    rules.push_back({.match = item.key(), .precision = Precision::recipe(recipe)});
  }
}

double Training::pass(int64_t step, int64_t samples, int64_t first, int64_t last) {
  double total = 0;
  for (int64_t number = first; number < last; ++number) {
    const auto batch = sample(step, number, sees_, world_.device());
    const auto loss = call(*model_, model_->part_of(batch));
    total += loss.item<double>();
    // The mean over the ranks is the sum over all samples, by a constant.
    (loss * (static_cast<double>(world_.size()) / static_cast<double>(samples * kSeq))).backward();
  }
  return total;
}

std::vector<double> Training::train(
    int64_t samples, int64_t first, int64_t last, const std::function<void()>& update) {
  micro_batches(*model_, last - first);
  std::vector<double> losses;
  for (int64_t step = 0; step < steps_; ++step) {
    losses.push_back(pass(step, samples, first, last));
    update();
  }
  return losses;
}

std::vector<double> Training::train(int64_t samples, int64_t first, int64_t last) {
  return train(samples, first, last, [this] { optimizer_->step(); });
}

std::map<std::string, double> Training::gradient_norms(int64_t samples) {
  micro_batches(*model_, samples);
  const int64_t first = samples * (world_.rank() / sharing_);
  pass(0, samples * groups(), first, first + samples);
  std::map<std::string, double> result{{"", gradient_norm(model_)}};
  for (const auto& one : norms(model_)) result[one.parameter] = one.gradient;
  return result;
}

std::vector<double> Training::train_shared(int64_t samples) {
  const int64_t first = samples * (world_.rank() / sharing_);
  return summed(train(samples * groups(), first, first + samples));
}

std::vector<double> Training::descend(int64_t samples, double expert_factor) {
  const int64_t first = samples * (world_.rank() / sharing_);
  torch::optim::SGD optimizer(sherd::parameters(*model_), torch::optim::SGDOptions(0.1));
  std::set<std::string> experts;  // their weights have three dims
  for (const auto& item : model_->named_parameters()) {
    if (item.value().dim() == 3) experts.insert(item.key());
  }
  return summed(train(samples * groups(), first, first + samples, [&] {
    finish(*model_);
    for (const auto& [name, main] : named_parameters(*model_)) {
      if (experts.contains(name) && main.grad().defined()) main.grad().mul_(expert_factor);
    }
    step(*model_, optimizer);
  }));
}

std::vector<double> Training::summed(std::vector<double> losses) const {
  for (auto& loss : losses) {
    auto total = at::full({1}, loss, at::TensorOptions().dtype(at::kDouble)).to(world_.device());
    world_.communicator().all_reduce(total, Reduction::sum()).synchronize();
    loss = total.item<double>();
  }
  return losses;
}

std::map<std::string, at::Tensor> Training::parameters() const {
  const auto all = full_parameters(*model_);
  return {all.begin(), all.end()};
}

SlicesOf Training::slices() const {
  return [this](const std::string& name, at::IntArrayRef shape) {
    return model_->slices_of(name, shape);
  };
}

Learnt learn_alone(Training& alone, int64_t samples) {
  auto losses = alone.train(samples, 0, samples);
  return {std::move(losses), alone.parameters()};
}

void expect_learns_alike(Training& together, Training& alone) {
  expect_learns_alike(together, learn_alone(alone, 2 * together.groups()));
}

void expect_learns_alike(Training& together, const Learnt& alone) {
  const auto losses = together.train_shared(2);
  ASSERT_EQ(losses.size(), alone.losses.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    const double near = i == 0 ? 1e-6 : i < kSteps ? 2e-6 : 1e-5;
    EXPECT_NEAR(losses[i] / alone.losses[i], 1, near) << "step " << i;
  }
  const auto ours = together.parameters();
  ASSERT_EQ(ours.size(), alone.parameters.size());
  for (const auto& [name, whole] : ours) {
    ASSERT_TRUE(alone.parameters.contains(name)) << name;
    const auto apart = (whole - alone.parameters.at(name)).abs().mean().item<double>();
    EXPECT_LE(apart, together.steps() > kSteps ? 1e-5 : 1e-6) << name;
  }
}

}  // namespace sherd::testing
