// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/meta_target.h"

namespace sherd {

/// Returns how many of `count` pieces an operation made of torch's computes together, if each takes
/// `elements` numbers in a temporary tensor: so many that a processor's cache, or a GPU, is filled,
/// but little memory is taken. At least one.
inline int64_t pieces_at_once(c10::Device device, int64_t count, int64_t elements) {
  const int64_t most = needs_device_tables(device) ? int64_t{1} << 26 : int64_t{1} << 20;
  return std::clamp<int64_t>(most / std::max<int64_t>(elements, 1), 1, std::max<int64_t>(count, 1));
}

}  // namespace sherd
