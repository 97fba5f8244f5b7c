// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "shard/group/fp8_views.h"

namespace sherd {

/// Returns a parameter as fp8 products read it, or nothing if it is not in fp8. Throws, naming it,
/// if its unit is released.
std::optional<Fp8Weight> fp8_weight(const at::Tensor& parameter);

}  // namespace sherd
