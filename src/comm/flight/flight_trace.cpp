// SPDX-License-Identifier: Apache-2.0
#include "comm/flight/flight_trace.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>
#include <utility>

#include "sherd/plan/exchange.h"
#include "sherd/plan/network.h"
#include "sherd/plan/program.h"

namespace sherd {
namespace {

using namespace flight;

std::string action_text(const FlightEntry& entry) {
  constexpr uint8_t kLast = static_cast<uint8_t>(Action::publish);
  return entry.kind <= kLast ? to_text(static_cast<Action>(entry.kind)) : "instruction";
}

std::string stream_text(const FlightEntry& entry) {
  return entry.stream < kStreams ? to_text(static_cast<Stream>(entry.stream)) : "stream";
}

/// A bar without its times; nothing for entries that are drawn otherwise.
TraceEvent bar_of(const FlightEntry& entry) {
  TraceEvent bar{.name = "", .category = "", .lane = "", .bytes = entry.bytes};
  switch (entry.type) {
    case Type::step:
      bar = {.name = c10::str("step ", entry.step), .category = "section", .lane = "step"};
      break;
    case Type::section: bar = {entry.name, "section", "section"}; break;
    case Type::call: bar = {entry.name, "compute", "call"}; break;
    case Type::instruction:
      bar.name = action_text(entry) + (entry.name.empty() ? "" : " " + entry.name);
      bar.lane = stream_text(entry);
      bar.category = bar.lane == "compute" ? "wait" : "transfer";
      break;
    case Type::exchange:
      bar.name = (entry.kind < kExchangeKinds ? to_text(static_cast<ExchangeKind>(entry.kind))
                                              : std::string("exchange")) +
                 " " + entry.name;
      bar.lane = "exchange";
      bar.category = "transfer";
      break;
    case Type::collective:
      bar.name = entry.kind <= static_cast<uint8_t>(Collective::barrier)
                     ? to_text(static_cast<Collective>(entry.kind))
                     : "collective";
      if (entry.index >= 0) bar.name += c10::str(" ", entry.index + 1);
      if (entry.is_open()) bar.name += " (not done)";
      if (entry.state == State::failed) bar.name += " (failed)";
      bar.lane = c10::str("'", entry.name, "' ", entry.line);
      bar.category = "transfer";
      break;
    case Type::none: break;
  }
  return bar;
}

/// Bars of a row must not overlap: what starts before another one ends is drawn behind it.
void part_overlaps(std::vector<TraceEvent>& events) {
  std::stable_sort(events.begin(), events.end(), [](const auto& one, const auto& other) {
    return one.begin < other.begin;
  });
  std::map<std::string, double> ends;
  for (auto& event : events) {
    auto& end = ends[event.lane];
    event.begin = std::max(event.begin, end);
    event.end = std::max(event.end, event.begin);
    end = event.end;
  }
}

TraceProcess process_of(const FlightLog& log, double begin) {
  TraceProcess process{c10::str("rank ", log.rank, " (", log.host, ")"), {}};
  // What is open lasts until the rank's last sign of life; sections and calls until the next one.
  std::map<std::string, size_t> last;
  for (const auto& entry : log.entries) {
    auto bar = bar_of(entry);
    if (bar.lane.empty()) continue;
    const double started = entry.started != 0 ? entry.started : entry.issued;
    const bool lasts = entry.type == Type::section || entry.type == Type::call;
    bar.begin = started;
    bar.end = lasts || entry.ended == 0 ? log.alive : entry.ended;
    if (entry.type == Type::section || entry.type == Type::step) {
      for (const char* lane : {"section", "call"}) {
        if (const auto found = last.find(lane); found != last.end())
          process.events[found->second].end = std::min(
              process.events[found->second].end, entry.type == Type::step ? entry.ended : started);
      }
      last.erase("call");
      if (entry.type == Type::step) last.erase("section");
    }
    if (entry.type == Type::call) {
      if (const auto found = last.find("call"); found != last.end())
        process.events[found->second].end = started;
    }
    if (lasts) last[bar.lane] = process.events.size();
    process.events.push_back(std::move(bar));
  }
  std::erase_if(process.events, [&](const TraceEvent& event) { return event.end < begin; });
  for (auto& event : process.events) {
    event.begin = std::max(event.begin, begin) - begin;
    event.end -= begin;
  }
  part_overlaps(process.events);
  return process;
}

}  // namespace

std::vector<TraceProcess> flight_trace(const std::vector<FlightLog>& logs, double seconds) {
  double end = 0;
  for (const auto& log : logs) end = std::max(end, log.alive);
  std::vector<TraceProcess> processes;
  for (const auto& log : logs) processes.push_back(process_of(log, end - seconds));
  return processes;
}

std::string flight_trace_of_folder(const std::string& folder, double seconds) {
  return chrome_trace(flight_trace(read_flight_logs(folder), seconds));
}

}  // namespace sherd
