// SPDX-License-Identifier: Apache-2.0
// A run's plan, for people and for programs.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "configuration/byte_size.h"
#include "files/format_text.h"
#include "forecast/plan.h"
#include "forecast/plan_page.h"
#include "forecast/time_text.h"

namespace sherd {
namespace {

std::string arena_text(const ProgramBytes& bytes) {
  const double over =
      bytes.bound > 0
          ? 100 * (static_cast<double>(bytes.arena) / static_cast<double>(bytes.bound) - 1)
          : 0;
  return format_text(
      "arena: %s, %.1f %% above the lower bound (%s)", byte_text(bytes.arena).c_str(), over,
      byte_text(bytes.bound).c_str());
}

/// Whether a rank's memory is enough, and with how much to spare.
std::string verdict(const RunPlan& plan) {
  if (plan.device_memory == 0) {
    return "whether it fits is not known: give --network with [device] memory";
  }
  const auto capacity = byte_text(plan.device_memory);
  const int64_t planned = plan.ledger.planned();
  const int64_t assumed = planned - plan.ledger.counted();
  auto text = planned <= plan.device_memory ? "fits a device of " + capacity + ", and leaves " +
                                                  byte_text(plan.device_memory - planned)
                                            : "does not fit a device of " + capacity + ", by " +
                                                  byte_text(planned - plan.device_memory);
  if (assumed > 0) text += " (" + byte_text(assumed) + " of the plan are assumed)";
  return text;
}

std::string speed_text(const RunPlan& plan) {
  auto text = format_text(
      "%.0f tokens/s per rank, %.0f of all ranks", plan.tokens_per_second,
      plan.tokens_per_second * static_cast<double>(plan.ranks));
  if (plan.device_tflops > 0) {
    const double tflops = plan.flops_per_token * plan.tokens_per_second / 1e12;
    text += format_text(
        "\n  a rank: %.0f TFLOP/s of model operations, %.1f %% of the device's %.0f", tflops,
        100 * tflops / plan.device_tflops, plan.device_tflops);
  }
  return text;
}

/// What units of one name but for its number have in common is said once.
std::string kind_of(const std::string& unit) {
  std::string kind;
  for (const char c : unit) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit) {
      kind += c;
    } else if (kind.empty() || kind.back() != '#') {
      kind += '#';
    }
  }
  return kind;
}

struct UnitRow {
  std::string name;
  int64_t count = 0;
  int64_t saved = 0;
  UnitTime time{};
  double exposed = 0;
};

std::vector<UnitRow> unit_rows(const RunPlan& plan) {
  std::vector<UnitRow> rows;
  for (size_t i = 0; i < plan.saved_activations.size(); ++i) {
    UnitRow row{kind_of(plan.program.units()[i].name), 1, plan.saved_activations[i]};
    if (!plan.times.empty()) row.time = plan.times[i];
    if (plan.timeline) row.exposed = plan.timeline->exposed[i];
    const auto same = std::find_if(rows.begin(), rows.end(), [&](const UnitRow& other) {
      return other.name == row.name && other.saved == row.saved;
    });
    if (same == rows.end()) {
      rows.push_back(row);
    } else {
      ++same->count;
      same->exposed += row.exposed;
    }
  }
  return rows;
}

nlohmann::ordered_json timeline_json(const RunPlan& plan) {
  if (!plan.timeline) return nullptr;
  const auto& timeline = *plan.timeline;
  nlohmann::ordered_json json{{"seconds", timeline.seconds}, {"sections", timeline.sections}};
  for (const auto stream : {Stream::compute, Stream::gather, Stream::reduce, Stream::outer}) {
    json["streams"].push_back(to_text(stream));
  }
  auto spans = nlohmann::ordered_json::array();
  for (const auto& span : timeline.spans) {
    if (span.end <= span.begin) continue;
    const auto unit = span.unit == kNone
                          ? std::string()
                          : plan.program.units()[static_cast<size_t>(span.unit)].name;
    spans.push_back(
        {{"stream", static_cast<int>(span.stream)},
         {"action", span.exchange ? to_text(*span.exchange) : to_text(span.action)},
         {"unit", unit},
         {"section", span.section},
         {"begin", span.begin},
         {"end", span.end},
         {"bytes", span.bytes}});
  }
  json["spans"] = std::move(spans);
  auto held = nlohmann::ordered_json::array();
  for (const auto& one : timeline.slot_spans) {
    const auto buffer = kSlotContents * one.unit + static_cast<int32_t>(one.content);
    held.push_back({{"buffer", buffer}, {"begin", one.begin}, {"end", one.end}});
  }
  json["held"] = std::move(held);
  return json;
}

nlohmann::ordered_json arena_json(const Program& program) {
  nlohmann::ordered_json json{{"bytes", program.bytes().arena}, {"bound", program.bytes().bound}};
  auto buffers = nlohmann::ordered_json::array();
  for (int32_t unit = 0; unit < std::ssize(program.units()); ++unit) {
    const auto& place = program.slots_of(unit);
    const auto& name = program.units()[static_cast<size_t>(unit)].name;
    const auto add = [&](const char* what, int32_t slot) {
      int64_t offset = 0;
      int64_t bytes = 0;
      if (slot != kNone) {
        offset = program.slots()[static_cast<size_t>(slot)].offset;
        bytes = program.slots()[static_cast<size_t>(slot)].bytes;
      }
      buffers.push_back({{"name", what + name}, {"offset", offset}, {"bytes", bytes}});
    };
    // In the order of SlotContent.
    add("parameters of ", place.parameters);
    add("transposed copies of ", place.transposed);
    add("gradients of ", place.gradients);
  }
  json["buffers"] = std::move(buffers);
  return json;
}

}  // namespace

std::string RunPlan::to_text() const {
  std::ostringstream out;
  out << title << ": " << verdict(*this) << '\n';
  for (const auto& [name, value] : facts)
    out << format_text("  %-28s%s\n", name.c_str(), value.c_str());
  out << "\nmemory of a rank\n" << ledger.to_text() << "  " << arena_text(program.bytes()) << '\n';
  if (!traffic.empty()) out << "\ncollectives of a step\n";
  for (const auto& row : traffic) {
    out << format_text(
        "  %-10s%-16s%6lld calls%12s, sends%12s", row.axis.c_str(), row.collective.c_str(),
        static_cast<long long>(row.calls), byte_text(row.bytes).c_str(),
        byte_text(row.wire).c_str());
    if (row.seconds > 0) out << format_text("%12s", time_text(row.seconds).c_str());
    out << '\n';
  }
  out << "\nunits                             activations each";
  if (timeline) out << "    forward   backward    exposed, all";
  out << '\n';
  for (const auto& row : unit_rows(*this)) {
    out << format_text(
        "  %5lld x %-24s%16s", static_cast<long long>(row.count), row.name.c_str(),
        byte_text(row.saved).c_str());
    if (timeline) {
      out << format_text(
          "%11s%11s%16s", time_text(row.time.forward).c_str(), time_text(row.time.backward).c_str(),
          time_text(row.exposed).c_str());
    }
    out << '\n';
  }
  if (timeline) {
    out << format_text(
        "\na step takes %s: compute %s, waiting for collectives %s; %s\n",
        time_text(timeline->seconds).c_str(), time_text(timeline->compute).c_str(),
        time_text(timeline->exposed_total()).c_str(), speed_text(*this).c_str());
    out << "  times: " << times_from << '\n';
  }
  if (!worlds.empty()) out << "\nranks        memory        step     exposed   tokens/s per rank\n";
  for (const auto& world : worlds) {
    out << format_text(
        "%5lld%14s%12s%12s%20.0f\n", static_cast<long long>(world.ranks),
        byte_text(world.bytes).c_str(), world.seconds > 0 ? time_text(world.seconds).c_str() : "-",
        world.seconds > 0 ? time_text(world.exposed).c_str() : "-", world.tokens_per_second);
  }
  return out.str();
}

std::string RunPlan::to_json(bool with_program) const {
  nlohmann::ordered_json json{
      {"source", configuration.source}, {"title", title}, {"world", ranks}, {"device", device}};
  json["facts"] = facts;
  const auto entry = [](const auto& name, int64_t planned, const std::optional<int64_t>& found) {
    nlohmann::ordered_json one;
    if constexpr (!std::is_same_v<std::decay_t<decltype(name)>, std::nullptr_t>) one["name"] = name;
    one["planned"] = planned;
    one["measured"] = nullptr;
    if (found) one["measured"] = *found;
    return one;
  };
  json["ledger"] = nlohmann::json::array();
  for (const auto& one : ledger.entries) {
    json["ledger"].push_back(entry(one.name, one.planned, one.measured));
  }
  json["total"] = entry(nullptr, ledger.planned(), ledger.measured());
  json["counted"] = ledger.counted();
  json["device_memory"] = device_memory > 0 ? nlohmann::json(device_memory) : nullptr;
  json["tokens_per_second"] = tokens_per_second * static_cast<double>(ranks);
  json["tflops"] = flops_per_token * tokens_per_second / 1e12;
  json["arena"] = arena_json(program);
  json["timeline"] = timeline_json(*this);
  json["units"] = nlohmann::json::array();
  for (size_t i = 0; i < program.units().size(); ++i) {
    json["units"].push_back(
        {{"name", program.units()[i].name},
         {"forward", times.empty() ? 0 : times[i].forward},
         {"backward", times.empty() ? 0 : times[i].backward},
         {"activations", saved_activations[i]},
         {"exposed", timeline ? timeline->exposed[i] : 0}});
  }
  json["traffic"] = nlohmann::json::array();
  for (const auto& row : traffic) {
    json["traffic"].push_back(
        {{"axis", row.axis},
         {"collective", row.collective},
         {"calls", row.calls},
         {"bytes", row.bytes},
         {"wire", row.wire},
         {"seconds", row.seconds}});
  }
  json["worlds"] = nlohmann::json::array();
  for (const auto& world : worlds) {
    json["worlds"].push_back(
        {{"world", world.ranks},
         {"bytes", world.bytes},
         {"seconds", world.seconds},
         {"exposed", world.exposed},
         {"tokens_per_second", world.tokens_per_second * static_cast<double>(world.ranks)}});
  }
  if (with_program) json["program"] = program.to_text();
  return json.dump();
}

std::string RunPlan::to_html() const {
  return plan_page(to_json(/*with_program=*/program.units().size() <= 200));
}

std::string difference(const RunPlan& one, const RunPlan& other) {
  const auto lines = [](const RunPlan& plan) {
    std::vector<std::pair<std::string, std::string>> all(plan.facts);
    for (const auto& entry : plan.ledger.entries) {
      all.emplace_back(entry.name, byte_text(entry.planned));
    }
    all.emplace_back("total", byte_text(plan.ledger.planned()));
    for (const auto& row : plan.traffic) {
      all.emplace_back(
          row.collective + " over " + row.axis,
          format_text(
              "%lld calls, %s", static_cast<long long>(row.calls), byte_text(row.bytes).c_str()));
    }
    if (plan.timeline) {
      all.emplace_back("step", time_text(plan.timeline->seconds));
      all.emplace_back("waiting", time_text(plan.timeline->exposed_total()));
    }
    return all;
  };
  const auto left = lines(one);
  const auto right = lines(other);
  const auto find = [](const auto& all, const std::string& name) -> std::string {
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const auto& line) { return line.first == name; });
    return found == all.end() ? "-" : found->second;
  };
  std::ostringstream out;
  out << one.title << '\n' << other.title << "\n\n";
  std::set<std::string> said;
  for (const auto* side : {&left, &right}) {
    for (const auto& [name, value] : *side) {
      if (!said.insert(name).second) continue;
      const auto a = find(left, name);
      const auto b = find(right, name);
      if (a == b) continue;
      out << format_text("%-26s %-30s -> %s\n", name.c_str(), a.c_str(), b.c_str());
    }
  }
  return out.str();
}

}  // namespace sherd
