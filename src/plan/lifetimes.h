// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "plan/arena.h"
#include "sherd/plan/program.h"

namespace sherd {

/// The sizes of a program's buffers: for each unit the bytes of its full parameters, of their
/// transposed copies and of its full gradients, and the bytes of copies of main gradients in the
/// reduce dtype.
struct Needs {
  std::vector<SlotAssignment> assignments;  ///< where groups lie in their unit's buffers
  std::vector<int64_t> parameters;
  std::vector<int64_t> transposed;
  std::vector<int64_t> gradients;
  int64_t stage_reduce = 0;
  int64_t stage_outer = 0;
};
Needs needs_of(const std::vector<UnitSpec>& units);

/// The buffers of an arena: each unit's parameters, each unit's transposed copies, each unit's
/// gradients, then the stages.
class ArenaBuffers {
 public:
  explicit ArenaBuffers(const Needs& needs);
  int32_t parameters(int32_t unit) const { return unit; }
  int32_t transposed(int32_t unit) const { return units_ + unit; }
  int32_t gradients(int32_t unit) const { return 2 * units_ + unit; }
  int32_t stage_reduce() const { return 3 * units_; }
  int32_t stage_outer() const { return 3 * units_ + 1; }
  const std::vector<int64_t>& bytes() const { return bytes_; }

 private:
  int32_t units_;
  std::vector<int64_t> bytes_;
};

/// Returns when each buffer is in use. Parameters: from the gather to the release. Transposed
/// copies: from the first of them to the release. Gradients: until
/// those of the next unit are complete, so that their reduction overlaps with the next unit's
/// backward. Stages: always.
std::vector<Lifetime> lifetimes_of(const Program& program, const ArenaBuffers& buffers);

}  // namespace sherd
