// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace sherd {

/// A fault of a gradient.
enum class Fault : uint8_t { none, nan, infinite, exploding };

}  // namespace sherd
