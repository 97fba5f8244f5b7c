// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/price.h"
#include "sherd/export.h"

namespace sherd {

/// One bar of a trace.
struct TraceEvent {
  std::string name;
  std::string category;
  std::string lane;   ///< row of the trace; bars of a row are disjoint or nested
  double begin = 0;   ///< seconds
  double end = 0;     ///< seconds
  int64_t bytes = 0;  ///< bytes that it moves; 0: not shown
};

/// A group of rows in a trace. Rows are shown in the order in which events first name them.
struct TraceProcess {
  std::string name;
  std::vector<TraceEvent> events;
};

/// Returns the events of a timeline that take time: a row "section" with the passes, then a row for
/// each stream, with names like "gather layers.3" and the categories "compute", "wait", "transfer"
/// and "kernel".
SHERD_API std::vector<TraceEvent> trace_events(const Program& program, const Timeline& timeline);

/// Returns the contents of a trace file for Perfetto (ui.perfetto.dev) or chrome://tracing. The
/// processes, for example a planned and a measured step, are shown one below the other.
SHERD_API std::string chrome_trace(std::span<const TraceProcess> processes);

}  // namespace sherd
