// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "sherd/export.h"

namespace sherd {

/// The collectives that sharding needs.
enum class Collective : uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce,
  broadcast,
  all_to_all,
  send,
  receive,
  barrier,
};

SHERD_API const char* to_text(Collective collective);

/// One axis of a network: what an operation costs to start, and what each rank can send per second.
struct Link {
  double latency = 0;    ///< seconds per operation
  double bandwidth = 0;  ///< bytes per second and rank; 0 means that bytes cost nothing
};

/// A described network: a link per mesh axis.
struct Network {
  std::map<std::string, Link> axes;
  Link fallback;         ///< of axes that are not named
  bool overlaps = true;  ///< transfers take no time of the processor that computes

  const Link& link(const std::string& axis) const {
    const auto found = axes.find(axis);
    return found == axes.end() ? fallback : found->second;
  }
};

/// The bytes that each of `ranks` sends for a collective whose full buffer has `bytes` (the
/// gathered output, the reduction's input; the message itself for the others), by the ring
/// algorithms.
SHERD_API int64_t wire_bytes(Collective collective, int64_t bytes, int64_t ranks);

/// The seconds that it takes on a link: latency plus wire bytes over bandwidth; nothing for one
/// rank.
SHERD_API double seconds(const Link& link, Collective collective, int64_t bytes, int64_t ranks);

}  // namespace sherd
