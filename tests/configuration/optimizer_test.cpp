// SPDX-License-Identifier: Apache-2.0
#include "configuration/optimizer.h"

#include <gtest/gtest.h>

#include "sherd/models/llama.h"

namespace sherd {
namespace {

TEST(OptimizerOfConfiguration, HasTheNumbersOfItsSection) {
  Configuration all;
  all.optim.lr = 0.5;
  all.optim.betas = {0.25, 0.75};
  all.optim.eps = 0.125;
  all.optim.weight_decay = 2;
  all.optim.max_norm = 3;
  const auto model =
      make_llama({.vocab = 8, .dim = 8, .layers = 1, .heads = 2, .kv_heads = 2, .head_dim = 4});
  const auto options = optimizer_of(all, *model);
  EXPECT_EQ(options.lr, 0.5);
  EXPECT_EQ(options.beta1, 0.25);
  EXPECT_EQ(options.beta2, 0.75);
  EXPECT_EQ(options.eps, 0.125);
  EXPECT_EQ(options.weight_decay, 2);
  EXPECT_EQ(options.max_norm, 3);
}

}  // namespace
}  // namespace sherd
