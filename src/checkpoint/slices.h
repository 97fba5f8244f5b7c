// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sherd/checkpoint/checkpoint.h"

namespace sherd {

/// What a parameter is saved as: `slices_of`, or the parameter itself. Throws, naming it, unless
/// the slices lie in their tensors and together have as many elements as it.
std::vector<TensorSlice> checked_slices(
    const SlicesOf& slices_of, const std::string& name, at::IntArrayRef shape);

/// How many a slice has.
int64_t elements_of(const TensorSlice& slice);

/// Elements of a parameter that lie one after another in a tensor, too.
struct Run {
  const std::string* tensor = nullptr;
  int64_t in_tensor = 0;     ///< first element, counted in the tensor
  int64_t in_parameter = 0;  ///< and in the parameter
  int64_t length = 0;
};

/// Calls `visit` for each run of the elements [begin, end) of a parameter, in order.
void each_run(
    const std::vector<TensorSlice>& slices,
    int64_t begin,
    int64_t end,
    const std::function<void(const Run&)>& visit);

}  // namespace sherd
