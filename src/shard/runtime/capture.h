// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace sherd {

class Runtime;

// A step that is recorded as a CUDA graph: the host goes through it once, and the device repeats
// it. StepGraph calls these around the capture and each replay.

/// Throws, naming the remedy, unless a step can be captured now.
void check_capturable(Runtime& runtime);
/// All streams of the program come from the capturing one, and what was signalled before is behind
/// it.
void begin_capture(Runtime& runtime);
void end_capture(Runtime& runtime);
/// The capture has ended, or failed.
void stop_capturing(Runtime& runtime) noexcept;

/// `update_version`: of the runtime's GraphState when the step was captured. `takes_tokens`: the
/// graph divides by a number of tokens that is given before each replay. Throws on all ranks what
/// the replay before the last one has found.
void before_replay(Runtime& runtime, int64_t update_version, bool takes_tokens);
void after_replay(Runtime& runtime);

}  // namespace sherd
