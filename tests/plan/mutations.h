// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <random>
#include <string>

#include "sherd/plan/program.h"

namespace sherd {

/// Opens a program to the tests.
struct ProgramMutation {
  static std::vector<Section>& forward(Program& program) { return program.forward_; }
  static std::vector<Section>& backward(Program& program) { return program.backward_; }
  static Section& update(Program& program) { return program.update_; }
  static std::vector<Slot>& slots(Program& program) { return program.slots_; }
};

namespace testing {

/// One thing that a schedule may get wrong.
enum class Mutation : uint8_t {
  drop_wait,
  drop_signal,
  redirect_wait,
  swap_neighbours,
  swap_release_with_compute,
  drop_drain,
  drop_instruction,
  repeat_instruction,
  move_reduction,
  move_gather_earlier,
  flip_overwrite,
  change_slot,
  alias_slots,
  change_stream,
  drop_transpose,
  read_another_copy,
  publish_before_exchange,
};
inline constexpr size_t kMutations = 17;

const char* to_text(Mutation mutation);

/// Makes one change of this kind in a section that typical sequences contain. Says what it did, or
/// nothing where the program has nothing of the kind.
std::optional<std::string> mutate(Program& program, Mutation mutation, std::mt19937_64& random);

}  // namespace testing
}  // namespace sherd
