// SPDX-License-Identifier: Apache-2.0
#include "plan/mutations.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "plan/proof.h"

namespace sherd::testing {
namespace {

size_t at(int32_t number) {
  return static_cast<size_t>(number);
}

/// An instruction of a section.
struct Spot {
  Section* section = nullptr;
  size_t number = 0;
  Instruction& instruction() const { return section->instructions[number]; }
};

class Mutator {
 public:
  Mutator(Program& program, std::mt19937_64& random) : program_(program), random_(random) {
    std::vector<Section*> all;
    for (auto& section : ProgramMutation::forward(program)) all.push_back(&section);
    for (auto& section : ProgramMutation::backward(program)) all.push_back(&section);
    all.push_back(&ProgramMutation::update(program));
    for (auto* section : all) {
      for (const auto& sequence : typical_sequences(program)) {
        if (std::find(sequence.begin(), sequence.end(), section) == sequence.end()) continue;
        sections_.push_back(section);
        break;
      }
    }
  }

  std::optional<std::string> make(Mutation mutation) {
    switch (mutation) {
      case Mutation::drop_wait: return change_wait(false);
      case Mutation::redirect_wait: return change_wait(true);
      case Mutation::drop_signal: return drop_signal();
      case Mutation::swap_neighbours: return swap_neighbours();
      case Mutation::swap_release_with_compute: return swap_release_with_compute();
      case Mutation::drop_drain: return drop({Action::drain});
      case Mutation::drop_instruction: return drop({});
      case Mutation::repeat_instruction: return repeat();
      case Mutation::move_reduction:
        return move({Action::stage, Action::reduce, Action::accumulate});
      case Mutation::move_gather_earlier: return move({Action::gather, Action::refresh}, true);
      case Mutation::flip_overwrite: return flip_overwrite();
      case Mutation::change_slot: return change_slot();
      case Mutation::alias_slots: return alias_slots();
      case Mutation::change_stream: return change_stream();
      case Mutation::drop_transpose: return drop({Action::transpose});
      case Mutation::read_another_copy: return read_another_copy();
      case Mutation::publish_before_exchange: return publish_before_exchange();
    }
    return std::nullopt;
  }

 private:
  size_t below(size_t count) { return random_() % count; }

  template <class Accept>
  std::optional<Spot> pick(Accept accept) {
    std::vector<Spot> spots;
    for (auto* section : sections_) {
      for (size_t i = 0; i < section->instructions.size(); ++i) {
        if (accept(Spot{section, i})) spots.push_back({section, i});
      }
    }
    if (spots.empty()) return std::nullopt;
    return spots[below(spots.size())];
  }

  std::optional<Spot> pick_action(std::initializer_list<Action> actions) {
    return pick([&](const Spot& spot) {
      return actions.size() == 0 ||
             std::find(actions.begin(), actions.end(), spot.instruction().action) != actions.end();
    });
  }

  std::string name(const Spot& spot) const {
    const auto& instruction = spot.instruction();
    std::ostringstream out;
    out << spot.section->name << ", instruction " << spot.number << ", '"
        << sherd::to_text(instruction.action);
    if (instruction.unit != kNone) out << ' ' << program_.units()[at(instruction.unit)].name;
    if (instruction.group != kNone) out << " group " << instruction.group;
    out << "'";
    return out.str();
  }
  const std::string& event(int32_t number) const { return program_.events()[at(number)]; }

  std::optional<std::string> change_wait(bool redirect) {
    const auto spot = pick([](const Spot& each) { return !each.instruction().waits.empty(); });
    if (!spot) return std::nullopt;
    auto& waits = spot->instruction().waits;
    const auto wait = below(waits.size());
    const auto before = name(*spot) + " waits no longer for " + event(waits[wait]);
    if (!redirect) {
      waits.erase(waits.begin() + static_cast<std::ptrdiff_t>(wait));
      return before;
    }
    const auto other = static_cast<int32_t>(below(program_.events().size()));
    if (other == waits[wait]) return std::nullopt;
    waits[wait] = other;
    return before + " but for " + event(other);
  }

  std::optional<std::string> drop_signal() {
    const auto spot = pick([](const Spot& each) { return each.instruction().signals != kNone; });
    if (!spot) return std::nullopt;
    const auto event_number = std::exchange(spot->instruction().signals, kNone);
    return name(*spot) + " signals no longer " + event(event_number);
  }

  std::optional<std::string> swap_neighbours() {
    const auto spot =
        pick([](const Spot& each) { return each.number + 1 < each.section->instructions.size(); });
    if (!spot) return std::nullopt;
    const Spot next{spot->section, spot->number + 1};
    const auto what = name(*spot) + " changes places with " + name(next);
    std::swap(spot->instruction(), next.instruction());
    return what;
  }

  std::optional<std::string> swap_release_with_compute() {
    const auto release = pick_action({Action::release});
    if (!release) return std::nullopt;
    Spot compute = *release;
    while (compute.number > 0 && (compute.instruction().action != Action::compute ||
                                  compute.instruction().unit != release->instruction().unit)) {
      --compute.number;
    }
    const auto what = name(*release) + " changes places with " + name(compute);
    std::swap(compute.instruction(), release->instruction());
    return what;
  }

  std::optional<std::string> drop(std::initializer_list<Action> actions) {
    const auto spot = pick_action(actions);
    if (!spot) return std::nullopt;
    const auto what = name(*spot) + " is dropped";
    auto& list = spot->section->instructions;
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(spot->number));
    return what;
  }

  std::optional<std::string> repeat() {
    const auto spot = pick_action({});
    auto& list = spot->section->instructions;
    // Half of them at once, half anywhere after.
    const auto gap = below(2) == 0 ? 0 : below(list.size() - spot->number);
    const auto to = spot->number + 1 + gap;
    const auto what = name(*spot) + " is repeated at " + std::to_string(to);
    const Instruction copy = spot->instruction();
    list.insert(list.begin() + static_cast<std::ptrdiff_t>(to), copy);
    return what;
  }

  std::optional<std::string> move(std::initializer_list<Action> actions, bool earlier = false) {
    const auto spot = pick_action(actions);
    if (!spot || (earlier && spot->number == 0)) return std::nullopt;
    auto& list = spot->section->instructions;
    const auto to = below(earlier ? spot->number : list.size());
    if (to == spot->number) return std::nullopt;
    const auto what = name(*spot) + " moves to " + std::to_string(to);
    const auto from = list.begin() + static_cast<std::ptrdiff_t>(spot->number);
    const auto target = list.begin() + static_cast<std::ptrdiff_t>(to);
    if (target < from) {
      std::rotate(target, from, from + 1);
    } else {
      std::rotate(from, from + 1, target + 1);
    }
    return what;
  }

  std::optional<std::string> flip_overwrite() {
    const auto spot = pick_action({Action::accumulate});
    if (!spot) return std::nullopt;
    auto& overwrite = spot->instruction().overwrite;
    overwrite = !overwrite;
    return name(*spot) + (overwrite ? " overwrites" : " adds");
  }

  std::optional<std::string> change_slot() {
    const auto count = program_.slots().size();
    const auto spot = pick([](const Spot& each) {
      return each.instruction().unit != kNone && each.instruction().action != Action::refresh;
    });
    if (!spot || count == 0) return std::nullopt;
    const auto other = static_cast<int32_t>(below(count + 1)) - 1;
    if (other == spot->instruction().slot) return std::nullopt;
    spot->instruction().slot = other;
    return name(*spot) + " uses slot " +
           (other == kNone ? "none" : program_.slots()[at(other)].name);
  }

  std::optional<std::string> alias_slots() {
    auto& slots = ProgramMutation::slots(program_);
    if (slots.size() < 2) return std::nullopt;
    const auto one = below(slots.size());
    const auto other = below(slots.size());
    if (one == other) return std::nullopt;
    slots[one].offset = slots[other].offset;
    return "slot " + slots[one].name + " moves onto " + slots[other].name;
  }

  std::optional<std::string> change_stream() {
    const auto spot = pick_action({});
    const auto other = static_cast<Stream>(below(kStreams));
    if (other == spot->instruction().stream) return std::nullopt;
    spot->instruction().stream = other;
    return name(*spot) + " runs on stream " + sherd::to_text(other);
  }

  std::optional<std::string> read_another_copy() {
    const auto spot = pick([](const Spot& each) { return each.instruction().also_reads != kNone; });
    if (!spot) return std::nullopt;
    auto& slot = spot->instruction().also_reads;
    const auto other = static_cast<int32_t>(below(program_.slots().size() + 1)) - 1;
    if (other == slot) return std::nullopt;
    slot = other;
    return name(*spot) + " also reads " +
           (other == kNone ? "nothing" : program_.slots()[at(other)].name);
  }

  std::optional<std::string> publish_before_exchange() {
    const auto exchange = pick_action({Action::exchange});
    if (!exchange) return std::nullopt;
    auto& list = exchange->section->instructions;
    const auto what = "publish comes before " + name(*exchange);
    std::rotate(
        list.begin() + static_cast<std::ptrdiff_t>(exchange->number), list.end() - 1, list.end());
    return what;
  }

  Program& program_;
  std::mt19937_64& random_;
  std::vector<Section*> sections_;
};

}  // namespace

const char* to_text(Mutation mutation) {
  switch (mutation) {
    case Mutation::drop_wait: return "drop a wait";
    case Mutation::drop_signal: return "drop a signal";
    case Mutation::redirect_wait: return "wait for another event";
    case Mutation::swap_neighbours: return "swap neighbours";
    case Mutation::swap_release_with_compute: return "swap release with compute";
    case Mutation::drop_drain: return "drop a drain";
    case Mutation::drop_instruction: return "drop an instruction";
    case Mutation::repeat_instruction: return "repeat an instruction";
    case Mutation::move_reduction: return "move a reduction";
    case Mutation::move_gather_earlier: return "move a gather earlier";
    case Mutation::flip_overwrite: return "flip overwrite";
    case Mutation::change_slot: return "use another slot";
    case Mutation::alias_slots: return "let two slots overlap";
    case Mutation::change_stream: return "run on another stream";
    case Mutation::drop_transpose: return "drop a transposition";
    case Mutation::read_another_copy: return "read another copy";
    case Mutation::publish_before_exchange: return "publish before an exchange";
  }
  return "?";
}

std::optional<std::string> mutate(Program& program, Mutation mutation, std::mt19937_64& random) {
  return Mutator(program, random).make(mutation);
}

}  // namespace sherd::testing
