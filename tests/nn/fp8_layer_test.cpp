// SPDX-License-Identifier: Apache-2.0
// How far the products of fp8 are from those of the same 16-bit operands with sums in fp32.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "nn/comparison.h"
#include "nn/fp8_model.h"
#include "shard/combinations.h"
#include "sherd/comm/world.h"

namespace sherd::testing {
namespace {

/// 20 log10 of the norm of what is wanted over the norm of the error.
double decibels(const at::Tensor& wanted, const at::Tensor& found) {
  const auto wide = wanted.to(at::kDouble);
  const auto error = found.to(at::kDouble) - wide;
  return 20 * std::log10(wide.norm().item<double>() / error.norm().item<double>());
}

/// A layer of a width.
struct LayerImpl : torch::nn::Module {
  LayerImpl(int64_t dim, int64_t width) {
    const auto matrix = [&](const char* name, int64_t rows, int64_t columns) {
      const double size = 1 / std::sqrt(static_cast<double>(columns));
      return register_parameter(
          name, (at::randn({rows, columns}) * size).to(at::kBFloat16).to(at::kFloat));
    };
    norm1 = register_parameter("norm1", at::ones({dim}));
    proj = matrix("proj", dim, dim);
    out = matrix("out", dim, dim);
    norm2 = register_parameter("norm2", at::ones({dim}));
    gate_up = matrix("gate_up", 2 * width, dim);
    down = matrix("down", dim, width);
  }
  at::Tensor forward(const at::Tensor& x) {
    if (only_product) return sherd::linear(x, out);
    if (only_products) {  // each from x alone
      const auto wide =
          x.repeat({1, (down.size(1) - 1) / x.size(1) + 1}).narrow(1, 0, down.size(1));
      return at::cat(
          {sherd::linear(x, proj), sherd::linear(x, out), sherd::linear(x, gate_up),
           sherd::linear(wide, down)},
          1);
    }
    if (only_feed_forward) {  // of two sequences, as models have them
      return sherd::feed_forward(x.unflatten(0, {2, -1}), gate_up, down).flatten(0, 1);
    }
    const auto [sum, packed] = norm_linear(x, {}, {norm1, 1e-5}, proj);
    const auto mixed = sherd::linear(packed, out);
    return std::get<1>(
        norm_feed_forward(mixed, sum, {norm2, 1e-5}, gate_up, down, {.adds_sum = true}));
  }
  bool only_product = false;
  bool only_products = false;
  bool only_feed_forward = false;
  at::Tensor norm1, proj, out, norm2, gate_up, down;
};
SHERD_MODULE(Layer);

using Results = std::map<std::string, at::Tensor>;

class Fp8LayerTest : public OnDevice {
 protected:
  bool real_width = device().is_cuda();
  int64_t dim() const { return real_width ? 4096 : 512; }
  int64_t width() const { return real_width ? 14336 : 1536; }
  int64_t tokens() const { return device().is_cuda() ? 4096 : real_width ? 256 : 384; }

  struct Given {
    at::Tensor x;
    at::Tensor gradient;
  };
  Given random(int64_t features = 0) const {
    const auto options = at::TensorOptions(device());
    const int64_t width = features == 0 ? dim() : features;
    return {
        at::randn({tokens(), dim()}, options).to(at::kBFloat16),
        (at::randn({tokens(), width}, options) * at::exp2(at::randn({tokens(), 1}, options) * 2))
            .to(at::kBFloat16)};
  }

  /// The result and all gradients with a recipe. "exact": operands in 16 bits, all else in fp32.
  Results run(const std::string& recipe, const Given& given, void (*adapt)(LayerImpl&)) const {
    at::manual_seed(5);
    Layer layer(dim(), width());
    adapt(*layer);
    layer->to(device());
    auto x = given.x.detach().clone();
    auto gradient = given.gradient;
    const auto world = World::emulated({.size = 1, .device = device()});
    UnitOptions options{.mesh = Mesh(world, {{"dp", 1}})};
    options.placement = Placement(Strategy::no_shard);
    if (recipe == "exact") {
      options.precision = Precision::recipe("fp32");
      x = x.to(at::kFloat);
      gradient = gradient.to(at::kFloat);
    } else {
      options.precision = Precision::recipe(recipe);
    }
    fully_shard(layer, options);
    x.set_requires_grad(true);
    const auto y = layer(x);
    Results results{{"result", y.detach()}};
    y.backward(gradient);
    results["input"] = x.grad();
    for (const auto& [name, main] : named_parameters(layer)) {
      if (main.grad().defined()) {
        results[name] = main.grad().view(layer->named_parameters()[name].sizes()).clone();
      }
    }
    return results;
  }

  void expect_decibels(
      const std::vector<std::string>& recipes,
      const Given& given,
      void (*adapt)(LayerImpl&),
      double least,
      double least_of_result = 0) {
    const auto exact = run("exact", given, adapt);
    for (const auto& recipe : recipes) {
      const auto found = run(recipe, given, adapt);
      std::string line = recipe + ":";
      for (const auto& [name, wanted] : exact) {
        if (wanted.abs().max().item<double>() == 0) continue;  // not used
        const auto& its = found.at(name);
        EXPECT_FALSE(at::isnan(its).any().item<bool>()) << recipe << ' ' << name;
        const double value = decibels(wanted, its);
        // A norm's gradient may consist of a single sum that cancels: chance decides then.
        if (wanted.dim() > 1) {
          EXPECT_GT(value, name == "result" ? std::max(least, least_of_result) : least)
              << recipe << " " << name;
        }
        line += c10::str(" ", name, " ", std::round(value * 10) / 10);
      }
      std::printf("%s dB\n", line.c_str());
    }
  }
};

const std::vector<std::string> kInFp8{"fp8", "fp8_wgrad16", "fp8_block", "mxfp8"};
const std::vector<std::string> kInFp8OrNot{"bf16_o2", "fp8", "fp8_wgrad16", "fp8_block", "mxfp8"};

constexpr void whole(LayerImpl&) {}
constexpr void products_apart(LayerImpl& layer) {
  layer.only_products = true;
}
constexpr void product(LayerImpl& layer) {
  layer.only_product = true;
}
constexpr void feed_forward_alone(LayerImpl& layer) {
  layer.only_feed_forward = true;
}

TEST_P(Fp8LayerTest, AProductAndItsGradientsAreTwentySixDecibelsAway) {
  expect_decibels(kInFp8, random(), product, 26);
}

// What follows has several products one after another, so their errors add up.
TEST_P(Fp8LayerTest, AFeedForwardAndItsGradientsAreTwentyDecibelsAway) {
  expect_decibels(kInFp8OrNot, random(), feed_forward_alone, 20);
}

TEST_P(Fp8LayerTest, ALayerAndItsGradientsAreTwentyDecibelsAway) {
  expect_decibels(kInFp8OrNot, random(), whole, 20);
}

/// At the widths of an 8B model. Each product is as precise as alone; in the layer, where they
/// follow one another, its result is, and gradients have the errors of all products on their way.
TEST_P(Fp8LayerTest, AtRealWidthProductsAndTheLayersResultAreTwentySixDecibelsAway) {
  if (!test_all() && !device().is_cuda()) return;
  real_width = true;
  expect_decibels(kInFp8, random(3 * dim() + 2 * width()), products_apart, 26);
  expect_decibels(kInFp8OrNot, random(), whole, 20, /*least_of_result=*/26);
}

TEST_P(Fp8LayerTest, ATokenMayHaveGradientsTenThousandTimesTheOthers) {
  auto given = random();
  given.gradient = at::randn_like(given.gradient);
  given.gradient[7] *= 1e4;
  expect_decibels(kInFp8, given, product, 20);
  expect_decibels(kInFp8, given, whole, 20);
}

TEST_P(Fp8LayerTest, AFeatureMayBeAThousandTimesTheOthers) {
  auto given = random();
  given.x.select(1, 5) *= 1e3;
  expect_decibels(kInFp8, given, product, 20);
  expect_decibels(kInFp8, given, whole, 20);
}

INSTANTIATE_TEST_SUITE_P(
    Devices, Fp8LayerTest, ::testing::ValuesIn(devices()), [](const auto& one) {
      return c10::DeviceTypeName(one.param, true);
    });

}  // namespace
}  // namespace sherd::testing
