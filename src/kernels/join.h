// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>

#include "sherd/plan/network.h"

namespace sherd {

/// Whether join() knows the reduction for this dtype: floating point has all, integers sum and max.
bool can_join(c10::ScalarType dtype, Reduction reduction);

/// On the CPU: output[i] = the sources' i-th elements joined in the order of the sources, so the
/// bits depend on nothing else. bf16 and fp16 are joined in fp32 and rounded once. `output` may be
/// one of the sources, else it must not overlap any.
void join(
    void* output,
    std::span<const void* const> sources,
    int64_t count,
    c10::ScalarType dtype,
    Reduction reduction);

}  // namespace sherd
