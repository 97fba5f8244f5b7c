// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sherd/export.h"
#include "sherd/plan/price.h"

namespace torch::nn {
class Module;
}

namespace sherd {

class Recorder;
class Runtime;

/// What a step did.
struct StepRecord {
  /// When everything happened, from the first instruction on. Slots are not among it.
  Timeline timeline;
  /// By unit: seconds of one call.
  std::vector<UnitTime> units;
  double update = 0;  ///< seconds from the end of the last backward to the new weights
  /// By unit: bytes that a forward of its own left behind for the backward; 0 where nobody counts.
  std::vector<int64_t> kept;
};

/// Records the steps of a model, from its construction to finish(): times on the device's own
/// clock, without making it wait. Between passes; `model` is a root and must outlive it.
class SHERD_API Recording {
 public:
  /// `live` says how many bytes are allocated now, if somebody knows.
  explicit Recording(const torch::nn::Module& model, std::function<int64_t()> live = {});
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  /// Blocks until all is done. Times are means where several steps were recorded; the timeline is
  /// that of all of them, one after the other.
  StepRecord finish();

 private:
  std::shared_ptr<Runtime> runtime_;
  std::shared_ptr<Recorder> recorder_;
};

}  // namespace sherd
