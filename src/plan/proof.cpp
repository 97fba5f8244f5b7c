// SPDX-License-Identifier: Apache-2.0
#include "plan/proof.h"

#include <stdexcept>

#include "plan/prover.h"
#include "plan/text.h"

namespace sherd {

std::string Refusal::to_text() const {
  const std::string where = instruction == kNone ? "at the end" : text("instruction ", instruction);
  return text("[plan.proof] ", section, ", ", where, ": ", why);
}

std::vector<Sequence> typical_sequences(const Program& program) {
  const auto forward = [&](bool changed, bool train, bool still_gathered) {
    return &program.forward({changed, train, still_gathered});
  };
  const auto backward = [&](bool first, bool last, bool still_gathered) {
    return &program.backward({first, last, still_gathered});
  };
  const Section* update = &program.update();
  return {
      // One pass a step, twice.
      {forward(false, true, false), backward(true, true, true), update, forward(true, true, false),
       backward(true, true, true), update, forward(true, true, false)},
      // Three passes a step, validation before the first and after the last.
      {forward(false, false, false), forward(false, true, false), backward(true, false, true),
       forward(false, true, false), backward(false, false, true), forward(false, true, false),
       backward(false, true, true), forward(false, false, false), update,
       forward(true, false, false), forward(false, true, false), backward(true, false, true),
       forward(false, true, false), backward(false, true, true), update},
      // Three forwards before three backwards, and validation between them.
      {forward(false, true, false), forward(false, true, true), forward(false, false, true),
       forward(false, true, true), backward(true, false, true), backward(false, false, false),
       backward(false, true, false), update, forward(true, true, false), backward(true, true, true),
       update},
  };
}

std::optional<Refusal> find_fault(const Program& program, const Sequence& sequence) {
  return Prover(program).run(sequence);
}

std::optional<Refusal> find_fault(const Program& program) {
  const int64_t budget = program.options().budget;
  const auto bytes = program.bytes();
  if (budget > 0 && bytes.peak() > budget) {
    return Refusal{
        "memory", kNone,
        text(
            "the peak of ", bytes.peak(), " bytes (", bytes.rest(), " at rest, ", bytes.arena,
            " in slots) is above the budget of ", budget,
            ": lower the prefetch depth, shard more, or raise it")};
  }
  const bool eager = program.options().memory == MemoryKind::eager;  // has no arena to speak of
  for (const auto& slot : program.slots()) {
    if (eager) break;
    if (slot.offset < 0 || slot.offset + slot.bytes > bytes.arena) {
      return Refusal{"memory", kNone, text("slot '", slot.name, "' reaches beyond the arena")};
    }
  }
  for (const auto& sequence : typical_sequences(program)) {
    if (auto fault = find_fault(program, sequence)) return fault;
  }
  return std::nullopt;
}

void prove(const Program& program) {
  if (const auto fault = find_fault(program)) throw std::runtime_error(fault->to_text());
}

}  // namespace sherd
