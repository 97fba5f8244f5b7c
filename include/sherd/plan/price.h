// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sherd/export.h"
#include "sherd/plan/network.h"
#include "sherd/plan/program.h"

namespace sherd {

/// Seconds that a unit computes in one call, without those of units inside it.
struct UnitTime {
  double forward = 0;
  double backward = 0;  ///< recomputing included
};

/// What the parts of a step cost.
struct Costs {
  std::vector<UnitTime> units;  ///< by unit
  double update = 0;            ///< the optimizer's step, publishing included
  Network network;
  /// Bytes per second, read and written, of kernels that stage and accumulate and of gathers over
  /// one rank, which are copies; 0: they cost nothing.
  double memory_bandwidth = 0;
};

/// What an instruction did, or is expected to do, and when: seconds from the start of the step.
/// What only waits lasts as long as it stands still.
struct Span {
  Stream stream{};
  Action action{};
  AxisKind axis{};
  int32_t unit = kNone;
  int32_t group = kNone;  ///< within the unit
  int32_t section = 0;    ///< of the timeline's
  double begin = 0;
  double end = 0;
  int64_t bytes = 0;  ///< of the full side of a collective; that a kernel reads and writes
};

/// While a unit has a buffer of the arena: from the first write to the last reader.
struct Held {
  int32_t slot = kNone;
  int32_t unit = kNone;
  bool gradients = false;  ///< rather than parameters
  double begin = 0;
  double end = 0;
};

/// When everything in one step happens.
struct Timeline {
  double seconds = 0;                 ///< of a step, as it repeats
  std::vector<std::string> sections;  ///< names, in the order in which they run
  std::vector<Span> spans;            ///< of all instructions, in the order of issue
  std::vector<Held> held;
  /// By unit: seconds that computing stood still for its collectives.
  std::vector<double> exposed;
  double compute = 0;  ///< seconds that computing was busy: `seconds` less all that is exposed

  SHERD_API double exposed_total() const;
};

/// The step that a training loop repeats: `micro_batches` passes after an update, and the next
/// update. The host is taken to be ahead of the device, and ranks to be equally fast. Throws
/// std::invalid_argument for costs that don't fit the program, are negative, or are not finite.
SHERD_API Timeline price(const Program& program, const Costs& costs);

}  // namespace sherd
