// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "configuration/configuration.h"
#include "sherd/shard/diagnostics.h"

namespace sherd {

/// Findings in the order in which a backward makes gradients: of the earliest micro-batch first,
/// and of its parameters the one nearest to the loss. What comes later may follow from it.
/// `parameters`: all names in the order of the forward.
std::vector<Finding> in_order_of_backward(
    std::vector<Finding> findings, const std::vector<std::string>& parameters);

/// What a run whose step is not finite is told: the first culprit, and the keys that may help.
/// `saved`: the folder of the last good state; empty: there is none.
std::string not_finite_text(
    const Configuration& configuration,
    int64_t step,
    const std::vector<Finding>& ordered,
    const std::string& saved);

}  // namespace sherd
