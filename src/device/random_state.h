// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <vector>

namespace sherd {

/// The state of the default random generators: CPU, and every CUDA device in use.
class RandomState {
 public:
  RandomState() = default;
  static RandomState now();
  /// While a graph of this device is captured, its generator is told by the numbers that the graph
  /// has drawn so far; nothing: no graph is captured any more.
  static void set_capturing(std::optional<c10::Device> device);
  void restore() const;

 private:
  at::Tensor cpu_;
  std::vector<std::pair<c10::Device, at::Tensor>> cuda_;
  std::optional<std::pair<c10::Device, uint64_t>> in_graph_;
};

}  // namespace sherd
