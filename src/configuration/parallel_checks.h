// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "configuration/configuration.h"

namespace sherd {

/// Returns whether a model that is described by keys has experts.
bool has_experts(const ModelSection& model);

/// Returns the width of a feed-forward that model.ffn = 0 stands for: two thirds of four times the
/// model's, rounded up to 64, so that it has as many weights as an ungated one would have.
int64_t usual_ffn(int64_t dim);

/// Checks whether ranks can share the sequences of a model (parallel.cp, parallel.tp), with its
/// weights in fp8, if they are; adds a line for each problem. `model` is described by keys: that of
/// model.from must be resolved().
void check_sharing(
    const Configuration& all, const ModelSection& model, std::vector<std::string>& problems);
/// Checks whether ranks can share its experts (parallel.ep), if they are described by keys, and the
/// strategies of these.
void check_experts(const Configuration& all, std::vector<std::string>& problems);

}  // namespace sherd
