// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace sherd {

/// Returns the name of a model's layer.
inline std::string layer_name(size_t number) {
  return "layer" + std::to_string(number);
}

}  // namespace sherd
