// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ranks/rank_world.h"
#include "shard/models.h"

namespace sherd::testing {

/// A way to shard, with a mesh that suits the world.
struct ShardingCase {
  std::string name;
  Placement placement{Strategy::optim_grads_params};
  bool two_axes = false;
};
/// Every placement over one axis, and those over two that shard over the outer axis, or replicate
/// over it what is fully sharded over the inner one. What is listed here runs in the tests of
/// parity, traffic, memory, AdamW and exceptions.
std::vector<ShardingCase> all_ways();
/// The one of that name; throws if there is none.
ShardingCase way_called(const std::string& name);
/// `dp` over all ranks, or `dp_outer` × `dp`, the outer axis two where the world's size allows it.
Mesh mesh_for(const ShardingCase& way);
/// The same one for the same axes, in every test of this process.
Mesh shared_mesh(const std::vector<Axis>& axes);

/// The cut of a parameter that is one of `count` equal parts of a whole, along dim 0.
Cut cut_into(int64_t count, int64_t index, at::IntArrayRef part);
/// A rule for each parameter of a module, with that cut and a mesh.
std::vector<ParameterRule> rules_cutting_into(
    int64_t count, int64_t index, const torch::nn::Module& module, const Mesh& mesh);
/// The elements of a whole parameter that such a part has.
at::Tensor part_of(const at::Tensor& whole, int64_t count, int64_t index);

enum class Optimizer { sgd, adamw };
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    Optimizer kind, std::vector<at::Tensor> parameters);

/// Rank r's batch for a micro-batch of a step: different on every rank and every time.
at::Tensor random_input(int64_t step, int64_t micro_batch, int64_t rank, at::IntArrayRef shape);

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
/// Asserts that the sharded model's weights are the reference's: norm of difference over norm.
void expect_weights(
    const NamedTensors& sharded, const torch::nn::Module& reference, double tolerance);
void expect_weights(const NamedTensors& sharded, const NamedTensors& reference, double tolerance);

inline void expect_loss(double sharded, double reference) {
  EXPECT_NEAR(sharded, reference, 5e-6 * std::abs(reference));
}

/// Each tensor once, under its first name.
NamedTensors parameters_without_copies(const torch::nn::Module& module);

/// On the test world's device, as fp32 leaves.
void to_device(torch::nn::Module& module);

}  // namespace sherd::testing
