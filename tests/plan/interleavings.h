// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "plan/abstract_machine.h"

namespace sherd::testing {

/// How the streams of a sequence may interleave, and whether it always ends well.
class Interleavings {
 public:
  Interleavings(const Program& program, const Sequence& sequence) : timeline_(program, sequence) {}

  /// Each instruction done before the next one is issued; also what is left when a section ends.
  std::optional<Violation> in_order() const;
  /// Streams as far ahead as they can, in every order of precedence, and as many at a time or as
  /// few as they can.
  std::optional<Violation> extreme() const;
  /// Each instruction in turn runs until nothing else can. Of two that can overlap at all, one then
  /// finds the other running.
  std::optional<Violation> one_slow() const;
  /// Streams of random speeds.
  std::optional<Violation> random(int runs, uint64_t seed) const;

  struct Search {
    std::optional<Violation> violation;
    bool complete = false;  ///< it saw every interleaving
    int64_t states = 0;
  };
  /// Every interleaving, unless there are more than so many states.
  Search all(int64_t most_states) const;

 private:
  Timeline timeline_;
};

/// The first violation of a program's typical sequences that any of the above but all() finds.
std::optional<Violation> find_violation(const Program& program, int random_runs, uint64_t seed);

}  // namespace sherd::testing
