// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "configuration/configuration.h"

namespace sherd {

/// Returns the learning rate of a step, counted from 1: it rises to optim.lr during the warm-up and
/// then follows the schedule, which reaches 0 one step after the last (except "constant").
double lr_of(const OptimSection& optim, int64_t steps, int64_t step);

}  // namespace sherd
