// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shard/fp8_weight.h"
#include "shard/parity.h"
#include "sherd/nn/functional.h"
#include "sherd/nn/linear.h"
#include "sherd/nn/recompute.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"

namespace sherd::testing {

constexpr int64_t kFp8Dim = 128, kFp8Width = 256, kFp8Rows = 24;

/// The bytes of a weight, and of its copy for the backward, as products saw them in a pass.
struct SeenWeight {
  Fp8Matrix forward;
  Fp8Matrix backward;
};

/// One layer: each operation that knows fp8.
struct Fp8BlockImpl : torch::nn::Module {
  Fp8BlockImpl() {
    const auto matrix = [&](const char* name, int64_t rows, int64_t columns) {
      return register_parameter(name, at::randn({rows, columns}) / 11);
    };
    norm1 = register_parameter("norm1", at::rand({kFp8Dim}) + 0.5);
    proj = matrix("proj", kFp8Width, kFp8Dim);
    out = matrix("out", kFp8Dim, kFp8Width);
    norm2 = register_parameter("norm2", at::rand({kFp8Dim}) + 0.5);
    gate_up = matrix("gate_up", 2 * kFp8Width, kFp8Dim);
    down = matrix("down", kFp8Dim, kFp8Width);
  }

  at::Tensor forward(const at::Tensor& x) {
    const auto layer = [this](const at::Tensor& y) { return run(y); };
    return recomputes ? recompute(layer, x) : layer(x);
  }

  std::map<std::string, SeenWeight>* seen = nullptr;
  bool recomputes = false;
  bool recompute_gate_up = false;
  at::Tensor norm1, proj, out, norm2, gate_up, down;

 private:
  at::Tensor run(const at::Tensor& x) {
    const auto [sum, packed] = norm_linear(x, {}, {norm1, 1e-5}, proj);
    look(packed);
    const auto mixed = sherd::linear(packed, out);
    return std::get<1>(norm_feed_forward(
        mixed, sum, {norm2, 1e-5}, gate_up, down,
        {.recompute_gate_up = recompute_gate_up, .adds_sum = true}));
  }

  /// Notes what products see now, and in the backward when the gradient of `inside` comes.
  void look(const at::Tensor& inside) {
    if (!seen) return;
    const auto each = [this](const auto& note) {
      for (const auto& item : named_parameters()) {
        if (item.value().dim() == 2) note((*seen)[item.key()], *fp8_weight(item.value()));
      }
    };
    const auto copy = [](const Fp8Matrix& one) {
      return Fp8Matrix{one.values.clone(), one.scales.clone(), one.scaling};
    };
    each([&](SeenWeight& mine, const Fp8Weight& now) { mine.forward = copy(now.weight); });
    if (!inside.requires_grad()) return;
    inside.register_hook([each, copy](const at::Tensor&) {
      each([&](SeenWeight& mine, const Fp8Weight& now) { mine.backward = copy(now.backward); });
    });
  }
};
SHERD_MODULE(Fp8Block);

/// Blocks, and a last product in the compute dtype.
struct Fp8StackImpl : torch::nn::Module {
  explicit Fp8StackImpl(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Fp8Block()));
    }
    head = register_parameter("head", at::randn({kFp8Dim}) / 11);
  }
  at::Tensor forward(const at::Tensor& input) {
    auto x = input;
    for (auto& block : blocks) x = block(x);
    return (x * head).to(at::kFloat).square().mean();
  }
  std::vector<Fp8Block> blocks;
  at::Tensor head;
};
SHERD_MODULE(Fp8Stack);

inline Fp8Stack fp8_stack(int64_t count = 2) {
  at::manual_seed(11);
  Fp8Stack model(count);
  model->to(test_world().device());
  return model;
}

inline void shard_fp8(Fp8Stack& model, const UnitOptions& options, const RootOptions& root = {}) {
  for (auto& block : model->blocks) fully_shard(block, options);
  fully_shard(model, options, root);
}

inline at::Tensor fp8_input(int64_t step, int64_t rank) {
  return random_input(step, 0, rank, {2, kFp8Rows / 2, kFp8Dim})
      .to(at::kBFloat16)
      .to(test_world().device());
}

}  // namespace sherd::testing
