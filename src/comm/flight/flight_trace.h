// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "comm/flight/flight_log.h"
#include "plan/trace.h"
#include "sherd/export.h"

namespace sherd {

/// Returns the last seconds of all ranks: rows for sections, calls, streams and communicators.
std::vector<TraceProcess> flight_trace(const std::vector<FlightLog>& logs, double seconds);
/// Returns a trace file for Perfetto of the files in a folder; see read_flight_logs().
SHERD_API std::string flight_trace_of_folder(const std::string& folder, double seconds);

}  // namespace sherd
