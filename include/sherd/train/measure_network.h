// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "sherd/comm/world.h"
#include "sherd/export.h"
#include "sherd/plan/network.h"
#include "sherd/train/network_file.h"

namespace sherd {

/// How long a collective took.
struct TimedCollective {
  Collective collective{};
  int64_t bytes = 0;   ///< of the full buffer
  double seconds = 0;  ///< of one operation: the median, of the slowest rank each time
};

/// Times gathers and reduce-scatters of several sizes over all ranks of the world and describes the
/// network that predicts them. All ranks count as one node, wherever they are. Collective; the
/// result is the same on all ranks, and so is what was measured, if asked for. Takes seconds, and
/// some hundred MiB of the device.
SHERD_API NetworkFile
measure_network(const World& world, std::vector<TimedCollective>* timed = nullptr);

/// The link that predicts these times among `ranks` best: the least sum of squares of the relative
/// errors, where times of equal bytes count as their mean, since a gather and a reduction share the
/// link.
SHERD_API Link fit_link(const std::vector<TimedCollective>& timed, int64_t ranks);

}  // namespace sherd
