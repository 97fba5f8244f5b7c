// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sherd/checkpoint/checkpoint.h"

namespace sherd {

/// Returns the slices that a parameter is stored as: those of `slices_of`, or by default one tensor
/// of its name. Throws, naming the parameter, unless the slices lie within their tensors and
/// together have as many elements as the parameter.
std::vector<TensorSlice> checked_slices(
    const SlicesOf& slices_of, const std::string& name, at::IntArrayRef shape);

/// Returns the number of elements of a slice.
int64_t elements_of(const TensorSlice& slice);

/// A range of a parameter's elements that is contiguous in a stored tensor, too.
struct Run {
  const std::string* tensor = nullptr;
  int64_t in_tensor = 0;     ///< first element, counted in the tensor
  int64_t in_parameter = 0;  ///< and in the parameter, or in the part of it that the rank has
  int64_t length = 0;
};

/// Calls `visit` for each run of the elements [begin, end) of a parameter, in order.
void each_run(
    const std::vector<TensorSlice>& slices,
    int64_t begin,
    int64_t end,
    const std::function<void(const Run&)>& visit);

}  // namespace sherd
