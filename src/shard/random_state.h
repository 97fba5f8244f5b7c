// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace sherd {

/// The state of the default random generators: CPU, and every CUDA device in use.
class RandomState {
 public:
  RandomState() = default;
  static RandomState now();
  /// While a graph is captured, generators of devices can't be asked.
  static void leave_devices(bool leave);
  void restore() const;

 private:
  at::Tensor cpu_;
  std::vector<std::pair<c10::Device, at::Tensor>> cuda_;
};

}  // namespace sherd
