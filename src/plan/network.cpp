// SPDX-License-Identifier: Apache-2.0
#include "sherd/plan/network.h"

namespace sherd {

const char* to_text(Collective collective) {
  switch (collective) {
    case Collective::all_gather: return "all_gather";
    case Collective::reduce_scatter: return "reduce_scatter";
    case Collective::all_reduce: return "all_reduce";
    case Collective::broadcast: return "broadcast";
    case Collective::all_to_all: return "all_to_all";
    case Collective::send: return "send";
    case Collective::receive: return "receive";
    case Collective::barrier: return "barrier";
  }
  return "?";
}

int64_t wire_bytes(Collective collective, int64_t bytes, int64_t ranks) {
  if (ranks <= 1) return 0;
  const int64_t others = bytes / ranks * (ranks - 1) + bytes % ranks * (ranks - 1) / ranks;
  switch (collective) {
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::all_to_all: return others;
    case Collective::all_reduce: return 2 * others;
    case Collective::broadcast:
    case Collective::send:
    case Collective::receive: return bytes;
    case Collective::barrier: return 0;
  }
  return 0;
}

double seconds(const Link& link, Collective collective, int64_t bytes, int64_t ranks) {
  if (ranks <= 1) return 0;
  const auto wire = static_cast<double>(wire_bytes(collective, bytes, ranks));
  return link.latency + (link.bandwidth > 0 ? wire / link.bandwidth : 0);
}

}  // namespace sherd
