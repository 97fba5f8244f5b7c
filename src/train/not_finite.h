// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "configuration/configuration.h"
#include "sherd/shard/diagnostics.h"
#include "train/bad_steps.h"

namespace sherd {

/// Sorts findings in the order in which a backward computes gradients: the earliest micro-batch
/// first, and within it the parameter nearest to the loss. Later ones may be consequences of the
/// first. `parameters`: all names in the order of the forward.
std::vector<Finding> in_order_of_backward(
    std::vector<Finding> findings, const std::vector<std::string>& parameters);

/// Returns the first of them as a clause, such as "the gradient of parameter 'x' is NaN in
/// micro-batch 1".
std::string culprits_text(const std::vector<Finding>& ordered);

/// Returns the message for a step that is not finite: the first parameter, and the keys that may
/// help. `saved`: the folder of the last good state; empty if there is none. `explosion`: for a
/// step that is finite, why it has ended the run.
std::string not_finite_text(
    const Configuration& configuration,
    int64_t step,
    const std::vector<Finding>& ordered,
    const std::string& saved,
    const std::string& explosion = "");

/// Returns why a step with this norm is bad though it is finite.
std::string explosion_text(double norm);

/// Returns a line of bad-steps.jsonl: the samples that the step had, and what became of it.
std::string bad_step_json(
    int64_t step,
    const BadSteps::Samples& samples,
    const std::string& cause,
    const std::string& decision);

}  // namespace sherd
