// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "shard/runtime/step_state.h"
#include "sherd/comm/world.h"

namespace sherd {

class HasNotices;
class Unit;

// Note [When one rank throws]
// A rank that throws in a pass has issued only the collectives up to its last boundary, those that
// gather ahead included. The others come to a collective that it has not issued, and would wait as
// long as an operation may take.
//
// CPU (mpi): the rank that throws leaves a notice, which reaches the other hosts without a
// collective. Ranks that have waited for a second in a pass, or in the check before the update,
// look for notices; one that finds a notice of the same pass, or of an earlier one, throws an error
// that names the rank, the pass and, in a forward, the unit. The operation that it waited for stays
// under way. If a rank throws after the others have received all they need from it, they go on and
// find the difference in the record of their next pass: when that rank goes on, too, or by the
// notice. Either way recover() comes next (failure.h). Waits outside of that (the gather of a unit
// that the program does not expect, recover() itself, functions between passes) end only when the
// operation's time is up.
//
// CUDA (nccl): the host does not wait for gathers. It runs ahead to the end of the first pass that
// the failed rank has not begun: the backward after a failed forward, the next forward after a
// failed backward (the update in between is enqueued). There it waits for the record of that pass.
// The failed rank sends another record with its next pass, and all ranks throw. If it never begins
// one, the others notice when it leaves (Departures) or when the operation's time is up. No notices
// are sent.
//
// If the exception destroys the world (stack unwinding, as in `sherd train`), the other ranks learn
// that instead: over mpi every operation throws at once, over nccl after about three seconds.

/// How ranks learn that another rank has given up a pass of their model: see the note.
class Abandonment {
 public:
  /// All ranks make those of their models in the same order.
  Abandonment(const World& world, const StepState& state);

  /// Tells the other ranks that this one has given up its pass, unless it did so because another
  /// rank had. The arguments are for their error; `unit` may be null. Does not throw.
  void announce(const char* pass, const Unit& root, const Unit* unit) noexcept;
  /// Throws if this rank is in a pass that another rank has given up, or in a later one. Does not
  /// block.
  void check();
  /// Tells the other ranks that this one waits to compare its `number`-th exchange along a line in
  /// the present pass, which they may not compare. Does not throw.
  void announce_comparison(
      const std::string& line, size_t number, const std::string& words) noexcept;
  /// Returns the first of the ranks that waits to compare the `number`-th exchange of the present
  /// pass along the line, or an earlier one, and its words. Does not block.
  std::optional<std::pair<int64_t, std::string>> comparison(
      std::span<const int64_t> ranks, const std::string& line, size_t number) const;
  /// Returns check() as a function, for LongWaitScope.
  const std::function<void()>& check_function() const { return check_function_; }
  /// Forgets the failed pass: all ranks go on.
  void note_recovery();

 private:
  const StepState& state_;
  HasNotices* notices_;       // null: nothing is told
  int64_t model_;             // its number, the same on all ranks
  int64_t recoveries_ = 0;    // passes are numbered anew after each
  bool is_reaction_ = false;  // this rank fails because another one has
  std::function<void()> check_function_;
};

}  // namespace sherd
