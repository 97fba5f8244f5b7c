// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/ones.h>

#include "sherd/nn/functional.h"
#include "sherd/shard/module.h"

namespace sherd {

struct RmsNormImpl : torch::nn::Module {
  RmsNormImpl(int64_t dim, double norm_epsilon) : epsilon(norm_epsilon) {
    weight = register_parameter("weight", at::ones({dim}));
  }
  at::Tensor forward(const at::Tensor& x_BSD) { return rms_norm(x_BSD, weight, epsilon); }
  at::Tensor weight;
  double epsilon;
};
SHERD_MODULE(RmsNorm);

}  // namespace sherd
