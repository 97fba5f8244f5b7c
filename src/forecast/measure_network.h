// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "configuration/network_file.h"
#include "sherd/comm/world.h"
#include "sherd/export.h"
#include "sherd/plan/network.h"

namespace sherd {

/// The measured time of a collective.
struct TimedCollective {
  Collective collective{};
  int64_t bytes = 0;   ///< bytes of the full buffer
  double seconds = 0;  ///< time of one operation on the slowest rank; the median of several
};

/// The measurements of one kind of link, and the link that predicts them best.
struct TimedLink {
  std::string name;   ///< "inside" or "between" nodes
  int64_t ranks = 0;  ///< ranks of each collective
  Link link;
  std::vector<TimedCollective> collectives;
};

/// Measures all-gathers and reduce-scatters of several sizes among the ranks of each machine and,
/// where there are several machines, among ranks of equal index on them, all at once; and returns
/// the network description that predicts them best. `timed`, if not null, receives the
/// measurements. Collective; blocks for seconds (on a slow network for a minute) and uses up to
/// 256 MiB of the device at a time. The results are the same on all ranks. Throws for a world of
/// one rank, and if the machines have different numbers of ranks.
SHERD_API NetworkFile measure_network(const World& world, std::vector<TimedLink>* timed = nullptr);

/// Returns the link that predicts these times among `ranks` best, by least squares of the relative
/// errors. Times of equally many bytes are averaged first. Throws for times that are not above 0.
SHERD_API Link fit_link(const std::vector<TimedCollective>& timed, int64_t ranks);

}  // namespace sherd
