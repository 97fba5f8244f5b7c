// SPDX-License-Identifier: Apache-2.0
#include "comm/flight/collective_table.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <tuple>

#include "sherd/plan/network.h"

namespace sherd {
namespace {

using flight::State;

bool never_completed(const FlightEntry& entry) {
  return entry.is_open() || entry.state == State::failed;
}

/// Counts of an all-to-all depend on the data, and may differ.
auto signature(const FlightEntry& entry) {
  const bool varies = entry.kind == static_cast<uint8_t>(Collective::all_to_all);
  return std::tuple(entry.kind, varies ? 0 : entry.bytes);
}

}  // namespace

std::string CollectiveTable::key_of(const FlightEntry& entry) {
  return c10::str(entry.line, " ", entry.name, " ", entry.axis, " ", c10::Join(",", entry.ranks));
}

CollectiveTable::CollectiveTable(const std::vector<FlightLog>& logs) {
  for (const auto& log : logs) {
    first_entries_[log.rank] = log.entries.empty() ? log.alive : log.entries.front().issued;
    for (const auto& entry : log.entries) {
      if (entry.type != flight::Type::collective || entry.index < 0) continue;
      auto& row = lines_[key_of(entry)][entry.index];
      row.members = &entry.ranks;
      row.by_rank[log.rank] = &entry;
    }
  }
}

std::optional<CollectiveTable::Difference> CollectiveTable::first_difference() const {
  std::optional<Difference> first;
  for (const auto& [key, line] : lines_) {
    for (const auto& [index, row] : line) {
      std::map<std::tuple<uint8_t, int64_t>, std::vector<int64_t>> alike;
      for (const auto& [rank, entry] : row.by_rank)
        alike[std::tuple<uint8_t, int64_t>(signature(*entry))].push_back(rank);
      if (alike.size() < 2) continue;
      const auto most =
          std::max_element(alike.begin(), alike.end(), [](const auto& one, const auto& other) {
            return one.second.size() < other.second.size();
          });
      Difference found{.most = most->second};
      for (const auto& [what, ranks] : alike) {
        if (what != most->first)
          found.others.insert(found.others.end(), ranks.begin(), ranks.end());
      }
      std::sort(found.others.begin(), found.others.end());
      found.of_most = row.by_rank.at(found.most.front());
      found.of_others = row.by_rank.at(found.others.front());
      if (!first || found.of_most->issued < first->of_most->issued) first = std::move(found);
      break;  // what follows in this line differs because of it
    }
  }
  return first;
}

bool CollectiveTable::has_made_later(const Line& line, int32_t index, int64_t rank) const {
  return std::any_of(line.upper_bound(index), line.end(), [&](const auto& later) {
    return later.second.by_rank.contains(rank);
  });
}

std::optional<CollectiveTable::Missing> CollectiveTable::longest_wait() const {
  std::optional<Missing> longest;
  for (const auto& [key, line] : lines_) {
    for (const auto& [index, row] : line) {
      Missing found;
      for (const auto& [rank, entry] : row.by_rank) {
        if (!never_completed(*entry) || entry->started == 0) continue;
        found.waiting.push_back(rank);
        if (found.call && found.since <= entry->started) continue;
        found.call = entry;
        found.since = entry->started;
      }
      if (found.waiting.empty()) continue;
      for (const int64_t rank : *row.members) {
        const auto begin = first_entries_.find(rank);
        // An entry that is older than the rank's ring was overwritten, or never written.
        if (begin == first_entries_.end() || row.by_rank.contains(rank)) continue;
        if (!has_made_later(line, index, rank)) found.missing.push_back(rank);
      }
      if (found.missing.empty()) continue;
      if (!longest || found.since < longest->since) longest = std::move(found);
      break;
    }
  }
  return longest;
}

bool CollectiveTable::made(int64_t rank, const FlightEntry& call) const {
  const auto line = lines_.find(key_of(call));
  if (line == lines_.end()) return false;
  const auto row = line->second.find(call.index);
  return row != line->second.end() && row->second.by_rank.contains(rank);
}

}  // namespace sherd
