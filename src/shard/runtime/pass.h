// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "sherd/plan/program.h"

namespace sherd {

/// One forward, and what its backward needs to know of it.
struct Pass {
  std::shared_ptr<const Program> program;  ///< in whose order it ran
  bool train = true;
  int64_t weight_version = 0;            ///< of the weights that it computed with
  std::vector<int32_t> new_positions{};  ///< by position: where `program` has the call; empty: same
  /// By position: the number that autograd gives the first node made within the call.
  std::vector<uint64_t> first_nodes{};
  /// Full parameters, by position, of calls under a recompute that the program did not expect:
  /// there is no gather when they are recomputed.
  std::map<int32_t, std::vector<at::Tensor>> copies{};
  /// This rank's marks of its calls (see CallMarks), if it recomputes what the program does not
  /// expect.
  std::vector<int64_t> new_recomputes{};
  /// The program does not know the exchanges of activations: they are recorded here.
  bool records_exchanges = false;
  std::map<int32_t, CallExchanges> exchanges{};  ///< by position; those of the backward come later

  /// Returns where `program` has the call of that position.
  int32_t position_in_program(int32_t position) const {
    return new_positions.empty() ? position : new_positions[static_cast<size_t>(position)];
  }
  /// Notes that nodes made from now on, on this thread, belong to the call.
  void note_first_node(int32_t position);
};

}  // namespace sherd
