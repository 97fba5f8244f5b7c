// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "configuration/configuration.h"

namespace sherd::app {

/// `--restarts` and `--min-ranks` of `sherd train`.
struct Restarts {
  int64_t most = 0;                    ///< how often ranks are started again
  std::optional<int64_t> min_ranks{};  ///< empty: with as many ranks as before
};

/// Throws a ValueError with the remedy if the run can't be started again as was asked for.
void check_restarts(const Restarts& restarts, const Configuration& configuration, int64_t ranks);

/// Starts the ranks of a training with start_local_ranks(), and again when one of them has died.
/// Never after a refusal, a stop signal or a step that is not finite. Blocks; returns the exit code
/// of the last start. `arguments`: the command without --ranks, --restarts and --min-ranks.
int train_with_restarts(
    const Restarts& restarts,
    const Configuration& configuration,
    int64_t ranks,
    const std::vector<std::string>& arguments);

}  // namespace sherd::app
