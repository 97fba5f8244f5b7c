// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "sherd/models/llama.h"

namespace sherd {

struct RotaryOptions {
  int64_t head_dim = 32;  ///< even
  double theta = 10000;
  std::optional<RopeScaling> scaling{};
};

/// The angles of rotary positions, made when they are first asked for.
class Rotary {
 public:
  explicit Rotary(const RotaryOptions& options) : options_(options) {}
  /// Turns x_BHSD by the positions 0 … S-1: dim i of a head goes with dim i + D/2.
  at::Tensor operator()(const at::Tensor& x_BHSD);

 private:
  void prepare(int64_t positions, const at::TensorOptions& like);

  RotaryOptions options_;
  at::Tensor cosine_SD;
  at::Tensor sine_SD;
};

}  // namespace sherd
