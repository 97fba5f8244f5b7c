// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "configuration/configuration.h"

namespace sherd {

/// The rate of a step, from 1 on: up to lr at the end of the warm-up, then by the schedule, which
/// would be at 0 one step after the last.
double rate_of(const OptimSection& optim, int64_t steps, int64_t step);

}  // namespace sherd
