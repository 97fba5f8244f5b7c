// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "comm/flight/flight_log.h"
#include "sherd/export.h"

namespace sherd {

/// The findings from the flight recorders of all ranks of a run.
struct Blame {
  std::string text;  ///< one paragraph
  bool well = true;  ///< no rank is missing, has failed or ran something else; one may be slow
};

/// Compares the records of all ranks: which rank is missing where, ran something else, or is slow.
Blame blame(const std::vector<FlightLog>& logs);
/// Does it for the files in a folder; see read_flight_logs().
SHERD_API Blame blame_folder(const std::string& folder);

}  // namespace sherd
