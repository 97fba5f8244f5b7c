// SPDX-License-Identifier: Apache-2.0
// AdamW's pass against torch's, given the same gradients, on every device that this machine has.
#include "kernels/adamw.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include "device_list.h"
#include "kernels/measure.h"

namespace sherd {
namespace {

constexpr std::array<int64_t, 7> kCounts{0, 1, 3, 1024, 1025, 20'000, 40'001};
constexpr double kLr = 3e-3;

struct Mix {
  at::ScalarType weight = at::kFloat;
  at::ScalarType gradient = at::kFloat;
  at::ScalarType state = at::kFloat;
  std::optional<at::ScalarType> model{};
};

at::Tensor fields_on(c10::Device device, double lr = kLr) {
  auto fields = at::zeros({control::count}, at::kDouble);
  fields[control::lr].fill_(lr);
  fields[control::tokens].fill_(1);
  fields[control::scale].fill_(1);
  return fields.to(device);
}

double value(const at::Tensor& fields, control::Field field) {
  return fields.cpu()[field].item<double>();
}

double relative(const at::Tensor& one, const at::Tensor& other) {
  if (other.numel() == 0) return 0;
  const auto a = one.cpu().to(at::kDouble), b = other.cpu().to(at::kDouble);
  return ((a - b).norm() / b.norm()).item<double>();
}

/// Tensors that begin off an aligned address too, and a pass over them.
struct Shards {
  Shards(const Mix& mix, c10::Device device) {
    at::manual_seed(11);
    for (const int64_t count : kCounts) {
      for (const int64_t offset : {0, 1}) {
        const auto make = [&](at::ScalarType dtype, bool random) {
          auto whole = random ? at::randn({count + offset}) : at::zeros({count + offset});
          return whole.to(dtype).to(device).narrow(0, offset, count);
        };
        AdamWTensors one;
        one.weight = make(mix.weight, true);
        one.gradient = make(mix.gradient, false);
        one.first = make(mix.state, false);
        one.second = make(mix.state, false);
        if (mix.model) one.model = make(*mix.model, false);
        one.settings.weight_decay = offset == 0 ? 0.1 : 0;
        one.settings.lr_factor = offset == 0 ? 1 : 0.5;
        tensors.push_back(one);
      }
    }
    pass = AdamWPass(tensors);
  }
  std::vector<AdamWTensors> tensors;
  AdamWPass pass;
};

class AdamWTest : public ::testing::TestWithParam<c10::DeviceType> {
 protected:
  c10::Device device() const { return c10::Device(GetParam()); }
};

TEST_P(AdamWTest, EqualsTorchsOverAHundredStepsOfTheSameGradients) {
  Shards shards({}, device());
  std::vector<at::Tensor> reference;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto& one : shards.tensors) {
    reference.push_back(one.weight.cpu().clone());
    auto options = std::make_unique<torch::optim::AdamWOptions>(kLr * one.settings.lr_factor);
    options->weight_decay(one.settings.weight_decay);
    groups.emplace_back(std::vector<at::Tensor>{reference.back()}, std::move(options));
  }
  torch::optim::AdamW torchs(groups, torch::optim::AdamWOptions(kLr));
  const auto fields = fields_on(device());
  auto sums = at::zeros({std::ssize(reference)}, at::TensorOptions(at::kDouble).device(device()));
  for (int step = 0; step < 100; ++step) {
    for (size_t i = 0; i < reference.size(); ++i) {
      reference[i].mutable_grad() = at::randn_like(reference[i]) * (step % 7 + 1);
      shards.tensors[i].gradient.copy_(reference[i].grad());
    }
    advance_control(fields, sums, {});
    shards.pass.run(fields);
    torchs.step();
  }
  for (size_t i = 0; i < reference.size(); ++i) {
    EXPECT_LT(relative(shards.tensors[i].weight, reference[i]), 1e-6) << "tensor " << i;
  }
  EXPECT_EQ(value(fields, control::step), 100);
}

/// One step in fp32, from and to the dtypes of the mix.
TEST_P(AdamWTest, EveryMixOfDtypesIsTheStepInFp32RoundedOnce) {
  for (const auto weight : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto gradient : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const auto state : {at::kFloat, at::kBFloat16}) {
        for (const auto model :
             {std::optional<at::ScalarType>(), std::optional(at::kBFloat16),
              std::optional(at::kHalf), std::optional(at::kFloat)}) {
          Shards shards({weight, gradient, state, model}, device());
          Shards wide({}, device());
          const auto fields = fields_on(device());
          for (size_t i = 0; i < shards.tensors.size(); ++i) {
            auto& one = shards.tensors[i];
            one.gradient.copy_(at::randn({one.gradient.numel()}));
            wide.tensors[i].weight.copy_(one.weight);
            wide.tensors[i].gradient.copy_(one.gradient);
          }
          advance_control(fields, at::zeros({1}, fields.options()), {});
          shards.pass.run(fields);
          wide.pass.run(fields);
          for (size_t i = 0; i < shards.tensors.size(); ++i) {
            const auto& one = shards.tensors[i];
            const auto& expected = wide.tensors[i];
            EXPECT_TRUE(at::equal(one.weight, expected.weight.to(weight))) << i;
            EXPECT_TRUE(at::equal(one.first, expected.first.to(state))) << i;
            EXPECT_TRUE(at::equal(one.second, expected.second.to(state))) << i;
            if (!model) continue;
            EXPECT_TRUE(at::equal(one.model, expected.weight.to(*model))) << i;
          }
        }
      }
    }
  }
}

TEST_P(AdamWTest, TheControlClipsSkipsAndScales) {
  const auto fields = fields_on(device());
  const auto sums = [&](std::vector<double> values) {
    return at::tensor(values, at::kDouble).to(device());
  };
  ControlRules rules{.max_norm = 2};
  advance_control(fields, sums({9, 16}), rules);
  EXPECT_DOUBLE_EQ(value(fields, control::norm), 5);
  EXPECT_DOUBLE_EQ(value(fields, control::coefficient), 2.0 / 5);
  EXPECT_EQ(value(fields, control::step), 1);
  advance_control(fields, sums({1}), rules);
  EXPECT_DOUBLE_EQ(value(fields, control::coefficient), 1) << "below the limit nothing is scaled";
  advance_control(fields, sums({1, NAN}), rules);
  EXPECT_EQ(value(fields, control::skip), 1);
  EXPECT_EQ(value(fields, control::step), 2) << "a skipped update is none";
  advance_control(fields, sums({4}), rules);
  EXPECT_EQ(value(fields, control::skip), 0);

  fields[control::scale].fill_(8);
  rules = {.max_norm = 1, .scaled = true, .interval = 2};
  advance_control(fields, sums({64 * 16}), rules);
  EXPECT_DOUBLE_EQ(value(fields, control::norm), 4) << "of the gradients without the scale";
  EXPECT_DOUBLE_EQ(value(fields, control::coefficient), 1.0 / 8 / 4);
  advance_control(fields, sums({0}), rules);
  EXPECT_DOUBLE_EQ(value(fields, control::scale), 16) << "after two in a row";
  advance_control(fields, sums({INFINITY}), rules);
  EXPECT_DOUBLE_EQ(value(fields, control::scale), 8);
  EXPECT_EQ(value(fields, control::skip), 1);
}

TEST_P(AdamWTest, ASkippedUpdateChangesNoBit) {
  Shards shards({.model = at::kBFloat16}, device());
  const auto fields = fields_on(device());
  std::vector<AdamWTensors> before;
  for (auto& one : shards.tensors) {
    one.gradient.fill_(1);
    before.push_back(
        {one.weight.clone(), {}, one.first.clone(), one.second.clone(), one.model.clone(), {}});
  }
  advance_control(fields, at::full({1}, INFINITY, fields.options()), {});
  shards.pass.run(fields);
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(at::equal(shards.tensors[i].weight, before[i].weight));
    EXPECT_TRUE(at::equal(shards.tensors[i].first, before[i].first));
    EXPECT_TRUE(at::equal(shards.tensors[i].second, before[i].second));
    EXPECT_TRUE(at::equal(shards.tensors[i].model, before[i].model));
  }
}

TEST_P(AdamWTest, AMeasurementIsTheSumOfSquaresOfEachTensorTheSameEveryTime) {
  at::manual_seed(3);
  std::vector<at::Tensor> tensors;
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const int64_t count : {0, 1, 7, 255, 16'384, 100'003}) {
      tensors.push_back(at::randn({count + 1}).to(dtype).to(device()).narrow(0, 1, count));
    }
  }
  tensors.push_back(at::full({1000}, 1e30).to(device()));  // whose squares fp32 can't hold
  tensors.push_back(at::full({5}, NAN).to(device()));
  tensors.push_back(at::full({5}, -INFINITY).to(device()));
  const Measurement measurement(tensors);
  auto sums = at::full({std::ssize(tensors)}, -1, at::TensorOptions(at::kDouble).device(device()));
  measurement.run(sums);
  const auto once = sums.cpu();
  for (size_t i = 0; i + 2 < tensors.size(); ++i) {
    const auto expected = tensors[i].cpu().to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(once[static_cast<int64_t>(i)].item<double>(), expected, 1e-12 * expected) << i;
  }
  EXPECT_TRUE(std::isnan(once[-2].item<double>()));
  EXPECT_TRUE(std::isinf(once[-1].item<double>()));
  for (int again = 0; again < 5; ++again) {
    measurement.run(sums);
    EXPECT_TRUE(at::equal(sums.cpu().view(at::kLong), once.view(at::kLong)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Devices, AdamWTest, ::testing::ValuesIn(testing::devices()), [](const auto& one) {
      return c10::DeviceTypeName(one.param, /*lower_case=*/true);
    });

}  // namespace
}  // namespace sherd
