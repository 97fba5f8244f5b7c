// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "plan/call_marks.h"
#include "sherd/plan/program.h"

namespace sherd {

/// Follows the calls of a forward through the boundaries of its section, with integers alone. The
/// caller reports which unit is entered or left; the tracker returns which boundaries to run next,
/// which calls the program did not foresee, and at the end the observed order.
class CallTracker {
 public:
  /// Begins a pass. `section` and `order` are of one program and outlive the pass. `known`: the
  /// ranks have agreed on this order; otherwise it is a guess.
  void begin(const Section& section, const CallOrder& order, bool train, bool known);
  /// Forgets the pass.
  void reset();

  /// The boundaries of calls that this rank leaves out. They are run all the same: other ranks may
  /// make these calls and need what this rank sends for them.
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };
  struct Entered {
    Range skipped{};
    std::optional<size_t> boundary{};  ///< of the call, after the skipped ones; none: unforeseen
    int32_t position = kNone;          ///< of the call in the observed order
    /// Call whose parameters were copied for a recompute and need not be.
    int32_t needless_copy = kNone;
  };
  /// Notes that a unit is called, under the recompute of this number (0: none).
  Entered enter(int32_t unit, int64_t recompute);

  struct Left {
    bool was_last = false;  ///< false: another unit was entered last, and nothing has changed
    Range skipped{};
    std::optional<size_t> boundary{};
    /// Call whose parameters must be copied: its recompute was not foreseen, so no gather comes
    /// before it.
    int32_t position_to_copy = kNone;
  };
  Left leave(int32_t unit);

  /// For a rank without data: skips to the end and returns all boundaries that are left.
  Range skip_rest();
  /// For a rank without data: notes that the others call units in another order than the program's.
  void note_other_order();

  bool is_open() const { return !frames_.empty(); }  ///< a call is under way
  /// Returns whether the pass has deviated from the order.
  bool has_deviated() const { return deviated_; }
  /// Returns the order that was observed, without recomputes.
  const CallOrder& observed() const { return deviated_ ? observed_ : *order_; }
  const std::vector<MadeCall>& made() const { return made_; }
  /// Returns whether parameters were copied for a recompute that was not foreseen.
  bool has_copies() const;
  /// At the end of the pass: see Entered::needless_copy.
  int32_t needless_copy() const;

 private:
  struct Frame {
    int32_t unit = kNone;
    int32_t position = kNone;  // in the section; none: unforeseen
    int32_t position_to_copy = kNone;
  };
  struct SeenRecompute {
    int64_t number = 0;
    int32_t expected = kNone;  // the program's number of it
    bool copies = false;
  };
  std::optional<size_t> find_ahead(int32_t unit) const;
  Range skip(size_t until);
  void start_recording_order();
  bool notice_recompute(int64_t recompute, int32_t expected);

  const Section* section_ = nullptr;
  const CallOrder* order_ = nullptr;
  bool train_ = true;
  bool known_ = false;
  size_t cursor_ = 0;  // the next boundary
  std::vector<Frame> frames_;
  bool deviated_ = false;
  CallOrder observed_;   // once it has deviated
  int32_t entered_ = 0;  // calls in it
  std::vector<MadeCall> made_;
  std::vector<SeenRecompute> recomputes_;
};

}  // namespace sherd
