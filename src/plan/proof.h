// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sherd/plan/program.h"

namespace sherd {

// Note [What the proof shows]
// Streams are queues, and events are edges between them; together they order instructions on every
// interleaving. The proof follows that order (by vector clocks) through sequences of sections as
// they follow one another in a run, and refuses a program unless
//   - any two accesses to one slot, weight or main gradient, one of them a write, are ordered: then
//     every interleaving computes what the order of issue computes;
//   - in the order of issue, a slot has one owner at a time, a unit computes with what was gathered
//     for it from the newest weights, every gather is consumed and released, gradients are complete
//     before they are reduced, each reduction reaches the main gradient exactly once, and nothing
//     is missing from it at the update;
//   - all streams have rejoined `compute` at the update;
//   - the bytes are within the budget.

/// The reason why a program is refused.
struct Refusal {
  std::string section;
  int32_t instruction = kNone;  ///< index in the section
  std::string why;
  std::string to_text() const;
};

/// Sections in the order in which a run would issue them.
using Sequence = std::vector<const Section*>;

/// Returns sequences that together contain every succession of sections that a run can produce:
/// accumulation over several passes, several forwards before as many backwards, validation at any
/// point, and the step after an update.
std::vector<Sequence> typical_sequences(const Program& program);

/// Returns the first fault of one sequence, if any.
std::optional<Refusal> find_fault(const Program& program, const Sequence& sequence);
/// Returns the first fault of the program, if any: in a typical sequence, or in its bytes.
std::optional<Refusal> find_fault(const Program& program);
/// Throws std::runtime_error with the text of the refusal if the program has a fault.
void prove(const Program& program);

}  // namespace sherd
