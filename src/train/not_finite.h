// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "configuration/configuration.h"
#include "sherd/shard/diagnostics.h"

namespace sherd {

/// Sorts findings in the order in which a backward computes gradients: the earliest micro-batch
/// first, and within it the parameter nearest to the loss. Later ones may be consequences of the
/// first. `parameters`: all names in the order of the forward.
std::vector<Finding> in_order_of_backward(
    std::vector<Finding> findings, const std::vector<std::string>& parameters);

/// Returns the message for a step that is not finite: the first parameter, and the keys that may
/// help. `saved`: the folder of the last good state; empty if there is none.
std::string not_finite_text(
    const Configuration& configuration,
    int64_t step,
    const std::vector<Finding>& ordered,
    const std::string& saved);

}  // namespace sherd
