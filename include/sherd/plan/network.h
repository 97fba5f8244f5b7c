// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "sherd/export.h"

namespace sherd {

/// The kinds of operations between ranks.
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

/// Returns the operation's name.
SHERD_API const char* to_text(Collective collective);

/// How a reduction combines the ranks' values. Integers have sum and max only.
struct Reduction {
  enum class Kind : uint8_t { sum, mean, max, scaled_sum };
  Kind kind = Kind::sum;
  double factor = 1;  ///< factor on the sum, for scaled_sum

  static Reduction sum() { return {Kind::sum, 1}; }
  static Reduction mean() { return {Kind::mean, 1}; }
  static Reduction max() { return {Kind::max, 1}; }
  static Reduction scaled_sum(double factor) { return {Kind::scaled_sum, factor}; }
};

/// The speed of a network along one axis.
struct Link {
  double latency = 0;    ///< seconds per operation
  double bandwidth = 0;  ///< bytes per second that each rank sends; 0: bytes take no time
};

/// A description of a network: a link for each mesh axis.
struct Network {
  std::map<std::string, Link> axes;  ///< links, by axis name
  Link fallback;                     ///< link of axes that `axes` does not have
  bool overlaps = true;              ///< transfers run while the processor computes

  /// Returns the link of an axis.
  const Link& link(const std::string& axis) const {
    const auto found = axes.find(axis);
    return found == axes.end() ? fallback : found->second;
  }
};

/// Returns the bytes that each of `ranks` sends in a collective, by the ring algorithms. `bytes` is
/// the size of the full buffer: the output of an all-gather, the input of a reduction, the message
/// of any other operation.
SHERD_API int64_t wire_bytes(Collective collective, int64_t bytes, int64_t ranks);

/// Returns the seconds that a collective takes on a link: the latency plus wire_bytes() divided by
/// the bandwidth; 0 for one rank.
SHERD_API double seconds(const Link& link, Collective collective, int64_t bytes, int64_t ranks);

}  // namespace sherd
