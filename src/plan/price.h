// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sherd/export.h"
#include "sherd/plan/network.h"
#include "sherd/plan/program.h"

namespace sherd {

/// The seconds of computing in one call of a unit, without the units inside it.
struct UnitTime {
  double forward = 0;   ///< without exchanges of activations
  double backward = 0;  ///< including recomputation
};

/// The costs of the parts of a step.
struct Costs {
  std::vector<UnitTime> units;  ///< one for each unit of the program
  double update = 0;            ///< seconds of the optimizer's step, publishing included
  Network network;              ///< speed of collectives
  /// Bytes per second, read plus written, of the kernels that stage and accumulate gradients, and
  /// of gathers over one rank, which are copies. 0: they take no time.
  double memory_bandwidth = 0;
};

/// One instruction of a step on the time axis, measured or predicted. Times are seconds from the
/// start of the step. An instruction that only waits lasts as long as computing waits for it.
struct Span {
  Stream stream{};
  Action action{};
  AxisKind axis{};
  int32_t unit = kNone;
  int32_t group = kNone;  ///< index within the unit
  int32_t section = 0;    ///< index in Timeline::sections
  double begin = 0;
  double end = 0;
  int64_t bytes = 0;  ///< full side of a collective, or bytes that a kernel reads and writes
  /// An exchange of activations, which is part of a `compute`; otherwise empty.
  std::optional<ExchangeKind> exchange{};
};

/// What a unit has in a slot of the arena.
enum class SlotContent : uint8_t { parameters, transposed, gradients };
inline constexpr int32_t kSlotContents = 3;

/// The time in which a unit uses a slot of the arena: from the first write to the last read.
struct SlotSpan {
  int32_t slot = kNone;
  int32_t unit = kNone;
  SlotContent content{};
  double begin = 0;
  double end = 0;
};

/// Everything that happens in one step, with its time.
struct Timeline {
  double seconds = 0;                 ///< duration of the step
  std::vector<std::string> sections;  ///< names of the sections, in the order in which they run
  std::vector<Span> spans;            ///< all instructions; predictions are in order of issue
  std::vector<SlotSpan> slot_spans;   ///< use of slots; predictions only
  /// By unit: seconds that computing waits for its collectives and exchanges (exposed
  /// communication).
  std::vector<double> exposed;
  double compute = 0;  ///< seconds of computing

  /// Returns the sum of `exposed`.
  SHERD_API double exposed_total() const;
};

/// Predicts the step that a training loop repeats: `micro_batches` passes and the update. Assumes
/// that the host is always ahead of the device, and that all ranks are equally fast. Throws
/// std::invalid_argument for costs that don't fit the program, are negative or are not finite.
SHERD_API Timeline price(const Program& program, const Costs& costs);

}  // namespace sherd
