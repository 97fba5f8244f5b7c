// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "sherd/models/llama.h"

namespace sherd {

/// The angles of rotary positions, made when they are first asked for.
class Rotary {
 public:
  explicit Rotary(const LlamaOptions& options) : options_(options) {}
  /// Turns x_BHSD by the positions 0 … S-1: dim i of a head goes with dim i + D/2.
  at::Tensor operator()(const at::Tensor& x_BHSD);

 private:
  void prepare(int64_t positions, const at::TensorOptions& like);

  LlamaOptions options_;
  at::Tensor cosine_SD;
  at::Tensor sine_SD;
};

}  // namespace sherd
