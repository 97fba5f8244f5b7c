// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "comm/flight/flight_log.h"
#include "sherd/export.h"

namespace sherd {

/// What the flight recorders of a run's ranks say together.
struct Blame {
  std::string text;  ///< one paragraph
  bool well = true;  ///< no rank is missing, has failed or ran something else; one may be slow
};

/// Compares what ranks have recorded: who is missing where, who ran something else, who is slow.
Blame blame(const std::vector<FlightLog>& logs);
/// Does it for the files in a folder; see read_flight_logs().
SHERD_API Blame blame_folder(const std::string& folder);

}  // namespace sherd
