// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "sherd/models/llama.h"
#include "sherd/nn/exchange.h"
#include "sherd/nn/functional.h"

namespace sherd {

struct RotaryOptions {
  int64_t head_dim = 32;  ///< even
  double theta = 10000;
  std::optional<RopeScaling> scaling{};
  std::optional<int64_t> rotated{};   ///< dims of a head that are rotated, even; none: all
  std::optional<Exchange> context{};  ///< ranks that have chunks of each sequence
};

/// The tables of rotary position embeddings, computed when they are first needed.
class Rotary {
 public:
  explicit Rotary(const RotaryOptions& options) : options_(options) {}
  /// Returns the tables of this rank's positions: `positions` many, 0 … `positions` − 1 unless
  /// ranks have chunks of each sequence. Dim i of a head is rotated with dim i
  /// + head_dim/2; where i is rotated/2 or above, the angle is 0.
  const RotaryTables& tables(int64_t positions, c10::Device device);

 private:
  RotaryOptions options_;
  RotaryTables tables_;
};

}  // namespace sherd
