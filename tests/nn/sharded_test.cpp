// SPDX-License-Identifier: Apache-2.0
// Where the fused operations write gradients themselves: as units of a world of one rank, against
// the same model whose gradients autograd carries.
#include <torch/optim/sgd.h>

#include <map>
#include <string>

#include "nn/comparison.h"
#include "sherd/comm/mesh.h"
#include "sherd/nn/functional.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"

namespace sherd::testing {
namespace {

constexpr int64_t kVocab = 40, kDim = 16, kWidth = 24, kTokens = 30;
constexpr double kShardedEpsilon = 1e-5;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    norm = register_parameter("norm", at::rand({kDim}) + 0.5);
    gate_up = register_parameter("gate_up", at::randn({2 * kWidth, kDim}) * 0.3);
    down = register_parameter("down", at::randn({kDim, kWidth}) * 0.3);
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual) {
    const auto [sum, y] = add_rms_norm(x, residual, norm, kShardedEpsilon);
    return sum + feed_forward(y, gate_up, down, recomputes);
  }
  bool recomputes = false;
  at::Tensor norm, gate_up, down;
};
SHERD_MODULE(Block);

/// The head is the embedding, so that both add to one gradient.
struct TiedImpl : torch::nn::Module {
  explicit TiedImpl(const HeadOptions& options) : head(options) {
    weight = register_parameter("weight", at::randn({kVocab, kDim}) * 0.3);
    norm = register_parameter("norm", at::rand({kDim}) + 0.5);
    first = register_module("first", Block());
    second = register_module("second", Block());
    second->recomputes = true;
  }
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets) {
    auto x = sherd::embedding(weight, tokens);
    x = first(x, x * 0.5);
    x = second(x, x * 0.5);
    return linear_cross_entropy(rms_norm(x, norm, kShardedEpsilon), weight, targets, head);
  }
  HeadOptions head;
  at::Tensor weight, norm;
  Block first{nullptr}, second{nullptr};
};
SHERD_MODULE(Tied);

class ShardedTest : public OnDevice {
 protected:
  Tied model(const HeadOptions& head) const {
    at::manual_seed(3);
    Tied result(head);
    result->to(device());
    return result;
  }
  at::Tensor tokens(int64_t batch, int64_t lowest) const {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(batch + 5));
    return at::randint(lowest, kVocab, {kTokens}, generator, at::kLong).to(device());
  }
  at::Tensor loss(Tied& tied, int64_t batch) const {
    return tied(tokens(batch, 0), tokens(batch, -5)) / static_cast<double>(kTokens);
  }
  /// What a step with rate 1 takes from the weights: the gradient.
  std::map<std::string, at::Tensor> sharded_gradients(
      const HeadOptions& head, const Precision& precision, Strategy strategy) const {
    const auto world = World::emulated({.rank = 0, .size = 1, .device = device()});
    const Mesh mesh(world, {{"dp", 1}});
    UnitOptions options;
    options.mesh = mesh;
    options.precision = precision;
    options.placement = Placement(strategy);
    auto tied = model(head);
    fully_shard(tied->first, options);
    fully_shard(tied->second, options);
    fully_shard(tied, options);
    micro_batches(tied, 2);
    const auto before = full_parameters(tied);
    torch::optim::SGD optimizer(parameters(tied), torch::optim::SGDOptions(1));
    for (int64_t batch = 0; batch < 2; ++batch) loss(tied, batch).backward();
    step(tied, optimizer);
    const auto after = full_parameters(tied);
    std::map<std::string, at::Tensor> result;
    for (size_t i = 0; i < before.size(); ++i) {
      result[before[i].first] = wide(before[i].second) - wide(after[i].second);
    }
    return result;
  }
};

TEST_P(ShardedTest, GradientsInTheUnitsBuffersAreThoseThatAutogradCarries) {
  for (const auto& head : {HeadOptions{HeadLogits::keep}, HeadOptions{HeadLogits::recompute, 8}}) {
    auto plain = model(head);
    for (int64_t batch = 0; batch < 2; ++batch) loss(plain, batch).backward();
    for (const auto strategy :
         {Strategy::no_shard, Strategy::optim_grads, Strategy::optim_grads_params}) {
      for (const std::string recipe : {"fp32", "bf16_o2"}) {
        auto found = sharded_gradients(head, Precision::recipe(recipe), strategy);
        for (const auto& item : plain->named_parameters()) {
          const auto wanted = wide(item.value().grad());
          ASSERT_TRUE(found[item.key()].defined()) << item.key();
          const auto difference = (found[item.key()] - wanted).norm() / wanted.norm();
          EXPECT_LT(difference.item<double>(), recipe == "fp32" ? 1e-5 : 0.03)
              << item.key() << " " << recipe;
        }
      }
    }
  }
}

SHERD_ON_DEVICES(ShardedTest);

}  // namespace
}  // namespace sherd::testing
