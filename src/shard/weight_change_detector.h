// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "kernels/cast_copy.h"

namespace sherd {

/// Detects that weights were written, also past their version counters (torch's SGD writes through
/// `data()`), by comparing the first element of each.
class WeightChangeDetector {
 public:
  WeightChangeDetector() = default;
  explicit WeightChangeDetector(const std::vector<at::Tensor>& weights);

  /// Copies the first elements as they are now, on the current stream.
  void snapshot();
  /// Returns whether one has changed since. Blocks the host until the current stream is done.
  bool changed() const;
  bool is_empty() const { return count_ == 0; }
  int64_t bytes() const { return noted_.defined() ? static_cast<int64_t>(noted_.nbytes()) : 0; }

 private:
  void look(at::Tensor& buffer) const;

  std::map<c10::ScalarType, std::vector<const void*>> elements_;
  c10::Device device_{c10::kCPU};
  int64_t count_ = 0;
  at::Tensor noted_;  // doubles
};

}  // namespace sherd
