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

/// The record of one or more steps.
struct StepRecord {
  /// Begin and end of every instruction, from the first one on; `slot_spans` is empty.
  Timeline timeline;
  /// By unit: mean seconds of one call.
  std::vector<UnitTime> units;
  double update = 0;  ///< mean seconds from the end of the last backward to the new weights
  /// By unit: most bytes that one forward left allocated (activations); 0 if bytes are not counted.
  std::vector<int64_t> saved_activations;
};

/// A recorder of a model's steps, from its construction to finish(). On CUDA times come from events
/// on the program's streams, which make neither device nor host wait; on CPU from the host's clock.
class SHERD_API Recording {
 public:
  /// Starts recording. `model` is a root and must outlive the recorder. `live`, if given, returns
  /// the bytes that are allocated now, for StepRecord::saved_activations. Call it between passes;
  /// blocks until work that is under way is done.
  explicit Recording(ModuleRef model, std::function<int64_t()> live = {});
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  /// Stops recording and returns the record. Blocks until the device is idle. If several steps were
  /// recorded, times of units and update are means, and the timeline has all steps in order.
  StepRecord finish();

 private:
  std::shared_ptr<Runtime> runtime_;
  std::shared_ptr<Recorder> recorder_;
};

}  // namespace sherd
