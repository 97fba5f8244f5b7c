// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "plan/price.h"
#include "sherd/export.h"
#include "sherd/shard/module_ref.h"

namespace sherd {

class Recorder;
class Runtime;

/// The result of a Recording: one or more steps.
struct StepRecord {
  /// Begin and end of every instruction, from the first one on; `slot_spans` is empty.
  Timeline timeline;
  /// By unit: mean seconds of one call.
  std::vector<UnitTime> units;
  double update = 0;  ///< mean seconds from the end of the last backward to the new weights
  /// By unit: most bytes that one forward left allocated (activations); 0 if bytes are not counted.
  std::vector<int64_t> saved_activations;
};

/// A recorder of a model's steps, from its construction to finish() or its destruction. On CUDA
/// times come from events on the program's streams, which make neither device nor host wait; on CPU
/// from the host's clock. A model has one at a time: a new one replaces the one before.
class SHERD_API Recording {
 public:
  /// Starts recording. `model` is a root and must outlive the recorder. `live`, if given, returns
  /// the bytes that are allocated now, for StepRecord::saved_activations; it is called at each
  /// instruction. Not collective; blocks until the model's communication on this rank is done.
  /// Throws during a pass.
  explicit Recording(ModuleRef model, std::function<int64_t()> live = {});
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  /// Stops recording and returns the record. Blocks until the device is idle. If several steps were
  /// recorded, times of units and update are means, and the timeline has all steps in order. Call
  /// it once, between passes; throws during one.
  StepRecord finish();

 private:
  std::shared_ptr<Runtime> runtime_;
  std::shared_ptr<Recorder> recorder_;
};

}  // namespace sherd
