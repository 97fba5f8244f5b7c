// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/flight/flight_log.h"

namespace sherd {

/// The collectives of all ranks, side by side. Refers to the logs.
class CollectiveTable {
 public:
  /// One collective, as the ranks that made it have recorded it.
  struct Row {
    const std::vector<int64_t>* members = nullptr;  ///< world ranks that should
    std::map<int64_t, const FlightEntry*> by_rank{};
  };
  /// Ranks that made different collectives at one place.
  struct Difference {
    std::vector<int64_t> most{};    ///< ranks that made the same, the most of all
    std::vector<int64_t> others{};  ///< those that made another one
    const FlightEntry* of_most = nullptr;
    const FlightEntry* of_others = nullptr;
  };
  /// Ranks that wait for others which have not made the call.
  struct Missing {
    std::vector<int64_t> waiting{};
    std::vector<int64_t> missing{};
    const FlightEntry* call = nullptr;  ///< of one that waits
    double since = 0;
  };

  explicit CollectiveTable(const std::vector<FlightLog>& logs);

  /// Returns the first difference in time, if there is one.
  std::optional<Difference> first_difference() const;
  /// Returns the collective for which ranks have waited the longest without others. Only ranks
  /// whose files are known can be missing.
  std::optional<Missing> longest_wait() const;
  /// Returns whether a rank made the same call, at the same place.
  bool made(int64_t rank, const FlightEntry& call) const;

 private:
  using Line = std::map<int32_t, Row>;  // by index
  static std::string key_of(const FlightEntry& entry);
  bool has_made_later(const Line& line, int32_t index, int64_t rank) const;

  std::map<std::string, Line> lines_;
  std::map<int64_t, double> first_entries_;  // by rank: when its record begins
};

}  // namespace sherd
