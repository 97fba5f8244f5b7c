// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "sherd/export.h"
#include "sherd/train/configuration.h"

namespace sherd {

/// Trains as the configuration says, as this process's rank of the world that started it: see
/// World::from_environment. Collective. Writes the results to train.out (rank 0), and shows
/// progress on standard output (rank 0).
SHERD_API void train(const Configuration& configuration);

/// The width of the terminal that progress is shown on; 0: there is none, and lines are plain. Who
/// starts ranks whose output goes through a pipe tells them in SHERD_TERMINAL.
SHERD_API int64_t terminal_columns();

}  // namespace sherd
