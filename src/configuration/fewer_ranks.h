// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "configuration/configuration.h"
#include "sherd/export.h"

namespace sherd {

/// Returns the data.micro_batches with which each step of `ranks` ranks has the samples that a step
/// of `before` ranks has with this configuration, with the same data.batch; nothing if there is
/// none, or if the configuration's axes don't divide the ranks.
SHERD_API std::optional<int64_t> micro_batches_for(
    const Configuration& configuration, int64_t before, int64_t ranks);

/// Returns the most ranks for which there are such micro-batches, at least `least` and fewer than
/// `below`; nothing if there are none. `before` as above.
SHERD_API std::optional<int64_t> fewer_ranks(
    const Configuration& configuration, int64_t before, int64_t below, int64_t least);

}  // namespace sherd
