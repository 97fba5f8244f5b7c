// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sherd/export.h"
#include "sherd/plan/price.h"

namespace sherd {

/// Something that took a while.
struct TraceEvent {
  std::string name;
  std::string category;
  std::string lane;   ///< those of one lane don't overlap, or contain each other
  double begin = 0;   ///< seconds
  double end = 0;     ///< seconds
  int64_t bytes = 0;  ///< 0: not said
};

/// Events with lanes of their own, in the order in which the lanes first come.
struct TraceProcess {
  std::string name;
  std::vector<TraceEvent> events;
};

/// What takes time in a timeline, by streams: lane "section" with the passes, then one per stream,
/// with names like "gather layers.3" and the categories "compute", "wait", "transfer" and "kernel".
SHERD_API std::vector<TraceEvent> trace_events(const Program& program, const Timeline& timeline);

/// A file for Perfetto (ui.perfetto.dev) or chrome://tracing, in which the processes stand one
/// below the other: a planned step and a real one, say.
SHERD_API std::string chrome_trace(std::span<const TraceProcess> processes);

}  // namespace sherd
