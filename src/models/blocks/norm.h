// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/ones.h>
#include <ATen/ops/rms_norm.h>

#include "sherd/shard/module.h"

namespace sherd {

struct RmsNormImpl : torch::nn::Module {
  RmsNormImpl(int64_t dim, double epsilon) : epsilon_(epsilon) {
    weight = register_parameter("weight", at::ones({dim}));
  }
  at::Tensor forward(const at::Tensor& x_BSD) {
    return at::rms_norm(x_BSD, weight.sizes(), weight, epsilon_);
  }
  at::Tensor weight;

 private:
  double epsilon_;
};
SHERD_MODULE(RmsNorm);

}  // namespace sherd
