// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "configuration/configuration.h"

namespace sherd {

/// Returns the learning rate of a step, counted from 1, of a run of `steps`: it rises to optim.lr
/// during the warm-up and then follows the schedule, which reaches optim.min_lr one step after the
/// last (except "constant"). `start`: the step after which the schedule has begun (anew).
double lr_of(const OptimSection& optim, int64_t steps, int64_t step, int64_t start = 0);

}  // namespace sherd
