// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sherd/plan/program.h"

namespace sherd {

// Note [What the proof shows]
// Streams are queues, events are edges between them; together they say which instruction is done
// before which other one starts, on every interleaving. The proof follows that order (by vector
// clocks) through sequences of sections as a run strings them together, and refuses unless
//   - any two accesses to one slot, weight or main gradient, one of them a write, are ordered: then
//     every interleaving computes what the order of issue computes;
//   - in the order of issue, a slot has one owner at a time, a unit computes with what was gathered
//     for it from the newest weights, every gather is consumed and released, gradients are complete
//     before they are reduced, each reduction reaches the main gradient exactly once, and nothing
//     is missing from it at the update;
//   - all streams have rejoined `compute` at the update;
//   - the bytes are within the budget.

/// Why a program is refused.
struct Refusal {
  std::string section;
  int32_t instruction = kNone;  ///< in the section
  std::string why;
  std::string to_text() const;
};

/// Sections one after another, as a run would issue them.
using Sequence = std::vector<const Section*>;

/// Sequences that together contain every neighbourhood a run can produce: accumulation over several
/// passes, several forwards before as many backwards, validation at any point, and the step after
/// an update.
std::vector<Sequence> typical_sequences(const Program& program);

/// The first fault of one sequence.
std::optional<Refusal> find_fault(const Program& program, const Sequence& sequence);
/// The first fault of the program: over all its typical sequences, or of its bytes.
std::optional<Refusal> find_fault(const Program& program);
/// Throws std::runtime_error with the refusal's words.
void prove(const Program& program);

}  // namespace sherd
