// SPDX-License-Identifier: Apache-2.0
// A checkpoint that is loaded between a step's last backward and its update.
#include <gtest/gtest.h>

#include "checkpoint/small_model.h"
#include "files/temporary_folder.h"
#include "sherd/checkpoint/checkpoint.h"

namespace sherd::testing {
namespace {

struct SumImpl : torch::nn::Module {
  SumImpl() { weight = register_parameter("weight", at::tensor({1.0F, 2.0F, 3.0F})); }
  at::Tensor forward(const at::Tensor& x) { return (x * weight).sum(); }
  at::Tensor weight;
};
SHERD_MODULE(Sum);

TEST(UnfinishedStep, GradientsPerTokenAreDroppedByALoad) {
  const auto world = World::emulated({.size = 1, .device = c10::kCPU});
  const TemporaryFolder folder;
  Sum model;
  fully_shard(model, {.mesh = Mesh(world, {{"dp", 1}})}, {.loss = Loss::per_token});
  AdamW optimizer(model, {.lr = 0.1, .weight_decay = 0});
  const auto backward = [&](double factor) { model(at::ones({3}) * factor).backward(); };
  const auto weight = [&] { return full_parameters(model).front().second; };
  save(model, optimizer, folder.path() + "/begin");
  backward(1);
  optimizer.step({.tokens = 4});
  const auto once = weight();
  load(model, optimizer, folder.path() + "/begin");
  backward(-7);
  load(model, optimizer, folder.path() + "/begin");
  EXPECT_TRUE(at::equal(weight(), at::tensor({1.0F, 2.0F, 3.0F})));
  backward(1);
  optimizer.step({.tokens = 4});
  EXPECT_TRUE(at::equal(weight(), once));
}

}  // namespace
}  // namespace sherd::testing
