// SPDX-License-Identifier: Apache-2.0
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "files/byte_text.h"
#include "plan/text.h"
#include "sherd/plan/program.h"

namespace sherd {
namespace {

const char* to_text(AxisKind axis) {
  switch (axis) {
    case AxisKind::none: return "";
    case AxisKind::inner: return "inner";
    case AxisKind::outer: return "outer";
  }
  return "";
}

const char* to_text(Boundary::Kind kind) {
  switch (kind) {
    case Boundary::Kind::enter: return "enter";
    case Boundary::Kind::exit: return "leave";
    case Boundary::Kind::recompute: return "recompute";
    case Boundary::Kind::end: return "end";
  }
  return "";
}

std::string subject(const Program& program, const Instruction& instruction) {
  if (instruction.unit == kNone) return "";
  const auto& unit = program.units()[static_cast<size_t>(instruction.unit)];
  return instruction.group == kNone ? unit.name
                                    : unit.groups[static_cast<size_t>(instruction.group)].name;
}

std::string encoding_text(const WeightEncoding& encoding) {
  if (encoding == WeightEncoding()) return "";
  return text(
      "; fp8: ", encoding.exchanged, " exchanged scales, blocks of ", encoding.block, " with ",
      encoding.scale_bytes, " bytes", encoding.transposes ? ", transposed" : "",
      encoding.two_ways ? ", both ways" : "");
}

void print(std::ostream& out, const Program& program, const Instruction& instruction) {
  out << "    " << std::left << std::setw(8) << sherd::to_text(instruction.stream) << std::setw(11)
      << sherd::to_text(instruction.action) << std::setw(28) << subject(program, instruction);
  if (instruction.slot != kNone) {
    out << " in " << program.slots()[static_cast<size_t>(instruction.slot)].name;
  }
  if (instruction.also_reads != kNone) {
    out << " and " << program.slots()[static_cast<size_t>(instruction.also_reads)].name;
  }
  if (const auto collective = collective_of(instruction)) {
    out << ", " << sherd::to_text(*collective) << " over " << to_text(instruction.axis) << ", "
        << byte_text(instruction.bytes) << (instruction.two_ways ? ", encoded both ways" : "");
  }
  if (instruction.action == Action::accumulate) {
    out << (instruction.overwrite ? ", overwrites" : ", adds");
  }
  for (const int32_t event : instruction.waits) {
    out << ", after " << program.events()[static_cast<size_t>(event)];
  }
  if (instruction.signals != kNone) {
    out << " → " << program.events()[static_cast<size_t>(instruction.signals)];
  }
  out << '\n';
}

/// The module makes them between the boundaries around its `compute`.
void print_exchanges(
    std::ostream& out, const Program& program, const Section& section, int32_t position) {
  for (const auto& one : program.exchanges_in(section, position)) {
    out << "    compute   exchange   " << sherd::to_text(one)
        << (one.pass == ExchangePass::recompute ? ", recomputed" : "") << '\n';
  }
}

nlohmann::json exchanges_json(const CallExchanges& exchanges) {
  auto json = nlohmann::json::array();
  for (const auto& one : exchanges) {
    json.push_back(
        {{"kind", sherd::to_text(one.kind)},
         {"pass", sherd::to_text(one.pass)},
         {"axis", one.axis},
         {"purpose", one.purpose},
         {"ranks", one.ranks},
         {"bytes", one.bytes},
         {"routed", one.routed}});
  }
  return json;
}

void print(std::ostream& out, const Program& program, const Section& section) {
  out << "\n" << section.name << '\n';
  for (const auto& boundary : section.boundaries) {
    if (boundary.begin == boundary.end) continue;
    out << "  " << to_text(boundary.kind);
    if (boundary.unit != kNone)
      out << ' ' << program.units()[static_cast<size_t>(boundary.unit)].name;
    if (boundary.kind == Boundary::Kind::recompute) out << " (gathered until its backward)";
    out << '\n';
    for (int32_t i = boundary.begin; i < boundary.end; ++i) {
      const auto& instruction = section.instructions[static_cast<size_t>(i)];
      print(out, program, instruction);
      if (instruction.action == Action::compute) {
        print_exchanges(out, program, section, boundary.position);
      }
    }
  }
}

nlohmann::json to_json(const Program& program, const Section& section) {
  auto instructions = nlohmann::json::array();
  for (const auto& instruction : section.instructions) {
    auto waits = nlohmann::json::array();
    for (const int32_t event : instruction.waits) {
      waits.push_back(program.events()[static_cast<size_t>(event)]);
    }
    nlohmann::json one{
        {"action", sherd::to_text(instruction.action)},
        {"stream", sherd::to_text(instruction.stream)},
        {"waits", waits}};
    if (instruction.unit != kNone) {
      one["unit"] = program.units()[static_cast<size_t>(instruction.unit)].name;
    }
    if (instruction.group != kNone) one["group"] = subject(program, instruction);
    if (instruction.slot != kNone) {
      one["slot"] = program.slots()[static_cast<size_t>(instruction.slot)].name;
    }
    if (instruction.also_reads != kNone) {
      one["also_reads"] = program.slots()[static_cast<size_t>(instruction.also_reads)].name;
    }
    if (const auto collective = collective_of(instruction)) {
      one["collective"] = sherd::to_text(*collective);
      one["axis"] = to_text(instruction.axis);
      one["bytes"] = instruction.bytes;
    }
    if (instruction.action == Action::accumulate) one["overwrite"] = instruction.overwrite;
    if (instruction.signals != kNone) {
      one["signals"] = program.events()[static_cast<size_t>(instruction.signals)];
    }
    instructions.push_back(std::move(one));
  }
  auto boundaries = nlohmann::json::array();
  for (const auto& boundary : section.boundaries) {
    nlohmann::json one{
        {"kind", to_text(boundary.kind)}, {"begin", boundary.begin}, {"end", boundary.end}};
    if (boundary.unit != kNone) {
      one["unit"] = program.units()[static_cast<size_t>(boundary.unit)].name;
    }
    if (boundary.kind == Boundary::Kind::exit) {
      const auto exchanges = program.exchanges_in(section, boundary.position);
      if (!exchanges.empty()) one["exchanges"] = exchanges_json(exchanges);
    }
    boundaries.push_back(std::move(one));
  }
  return {{"name", section.name}, {"instructions", instructions}, {"boundaries", boundaries}};
}

}  // namespace

const char* to_text(Stream stream) {
  switch (stream) {
    case Stream::compute: return "compute";
    case Stream::gather: return "gather";
    case Stream::reduce: return "reduce";
    case Stream::outer: return "outer";
  }
  return "?";
}

const char* to_text(Action action) {
  switch (action) {
    case Action::refresh: return "refresh";
    case Action::gather: return "gather";
    case Action::transpose: return "transpose";
    case Action::wait: return "wait";
    case Action::compute: return "compute";
    case Action::release: return "release";
    case Action::open: return "open";
    case Action::stage: return "stage";
    case Action::reduce: return "reduce";
    case Action::accumulate: return "accumulate";
    case Action::drain: return "drain";
    case Action::update: return "update";
    case Action::exchange: return "exchange";
    case Action::publish: return "publish";
  }
  return "?";
}

const char* to_text(MemoryKind kind) {
  return kind == MemoryKind::planned ? "planned" : "eager";
}

std::string Program::facts() const {
  std::ostringstream out;
  out << "micro-batches: " << options_.micro_batches << '\n'
      << "prefetch depth: " << options_.prefetch_depth << '\n'
      << "memory: " << sherd::to_text(options_.memory) << '\n'
      << "loss: " << options_.loss << '\n';
  for (const auto& unit : units_) {
    out << "unit '" << unit.name << "'" << (unit.keep_gathered ? ", keeps gathered" : "");
    for (const int32_t other : unit.prefetch) {
      out << ", prefetches '" << units_[static_cast<size_t>(other)].name << "'";
    }
    for (const int32_t other : unit.backward_prefetch) {
      out << ", in the backward prefetches '" << units_[static_cast<size_t>(other)].name << "'";
    }
    out << '\n';
    for (const auto& group : unit.groups) {
      out << "group '" << group.name << "': " << group.elements << " elements of "
          << group.bytes.model << ", " << group.bytes.main << ", " << group.bytes.gradient << ", "
          << group.bytes.reduce << " bytes; over " << group.axis_sizes.inner << " x "
          << group.axis_sizes.outer << " ranks; " << group.placement.to_text()
          << (group.trainable ? "" : "; frozen") << encoding_text(group.encoding) << "; "
          << group.layout << '\n';
    }
  }
  const auto list = [&](const CallOrder& order, const char* when) {
    for (const auto& visit : order) {
      out << when << (visit.enter ? "enter '" : "leave '")
          << units_[static_cast<size_t>(visit.unit)].name << "'";
      if (visit.recompute != kNone) out << " in recompute " << visit.recompute;
      out << '\n';
    }
  };
  list(order_, "");
  if (evaluation_) list(*evaluation_, "without gradients: ");
  for (size_t position = 0; position < exchanges_.size(); ++position) {
    for (const auto& one : exchanges_[position]) {
      out << "call " << position << ", " << sherd::to_text(one.pass) << ": " << sherd::to_text(one)
          << " (" << one.bytes << ")\n";
    }
  }
  return out.str();
}

std::string Program::to_text() const {
  std::ostringstream out;
  const auto traffic = this->traffic();
  out << units_.size() << " units, prefetch depth " << options_.prefetch_depth << ", "
      << options_.micro_batches << " micro-batches a step\n"
      << "a step: " << traffic.all_gather.calls << " all-gathers ("
      << byte_text(traffic.all_gather.bytes) << "), " << traffic.reduce_scatter.calls
      << " reduce-scatters (" << byte_text(traffic.reduce_scatter.bytes) << "), "
      << traffic.all_reduce.calls << " all-reduces (" << byte_text(traffic.all_reduce.bytes)
      << ")\n";
  for (const auto& [axis, exchanges] : traffic.exchanges) {
    out << "exchanges of activations along " << axis << ": " << exchanges.calls << " ("
        << byte_text(exchanges.bytes) << ")\n";
  }
  out << "memory: model weights " << byte_text(bytes_.model_weights) << ", main weights "
      << byte_text(bytes_.main_weights) << ", main gradients " << byte_text(bytes_.main_gradients)
      << ", arena " << byte_text(bytes_.arena) << " (at least " << byte_text(bytes_.bound)
      << " in use at once); at rest " << byte_text(bytes_.rest()) << ", peak "
      << byte_text(bytes_.peak()) << '\n';
  for (const auto& slot : slots_) {
    out << "slot " << std::left << std::setw(14) << slot.name << std::right << std::setw(10)
        << byte_text(slot.bytes) << " at " << slot.offset << '\n';
  }
  for (const auto* section : sections()) print(out, *this, *section);
  return out.str();
}

std::string Program::to_json() const {
  nlohmann::json json;
  const auto traffic = this->traffic();
  const auto count = [](const Traffic& kind) {
    return nlohmann::json{{"calls", kind.calls}, {"bytes", kind.bytes}};
  };
  json["prefetch_depth"] = options_.prefetch_depth;
  json["micro_batches"] = options_.micro_batches;
  std::ostringstream hexadecimal;
  hexadecimal << std::hex << fingerprint();
  json["fingerprint"] = hexadecimal.str();
  json["bytes"] = {
      {"model_weights", bytes_.model_weights},
      {"main_weights", bytes_.main_weights},
      {"main_gradients", bytes_.main_gradients},
      {"arena", bytes_.arena},
      {"bound", bytes_.bound},
      {"rest", bytes_.rest()},
      {"peak", bytes_.peak()}};
  json["step"] = {
      {"all_gather", count(traffic.all_gather)},
      {"reduce_scatter", count(traffic.reduce_scatter)},
      {"all_reduce", count(traffic.all_reduce)}};
  for (const auto& [axis, exchanges] : traffic.exchanges) {
    json["step"]["exchanges"][axis] = count(exchanges);
  }
  json["slots"] = nlohmann::json::array();
  for (const auto& slot : slots_) {
    json["slots"].push_back({{"name", slot.name}, {"offset", slot.offset}, {"bytes", slot.bytes}});
  }
  json["sections"] = nlohmann::json::array();
  for (const auto* section : sections()) {
    json["sections"].push_back(sherd::to_json(*this, *section));
  }
  return json.dump(1);
}

}  // namespace sherd
