// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "sherd/models/llama.h"
#include "sherd/nn/functional.h"

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
  /// Of the positions 0 … S-1: dim i of a head goes with dim i + d/2.
  const RotaryTables& tables(int64_t positions, c10::Device device);

 private:
  RotaryOptions options_;
  RotaryTables tables_;
};

}  // namespace sherd
