// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "sherd/comm/world.h"
#include "train/metrics.h"

namespace sherd {

/// The losses and norms of the latest steps, which stay on the device until somebody reads them:
/// nothing waits for the device before.
class StepLog {
 public:
  static constexpr int64_t kMost = 1024;  ///< steps that it holds

  explicit StepLog(const World& world);
  /// Before a step is begun.
  void begin();
  /// After it. `loss`: the sum over this rank's targets, `norm` that of the gradients; one element
  /// each, on the device. `targets` and `tokens` are those of all ranks.
  void add(
      const StepMetrics& known,
      const at::Tensor& loss,
      const at::Tensor& norm,
      int64_t targets,
      int64_t tokens);
  bool empty() const { return steps_.empty(); }
  bool full() const { return std::ssize(steps_) == kMost; }
  /// The steps since the last call; their times are the mean over them. Collective; waits for the
  /// device.
  std::vector<StepMetrics> take();

 private:
  struct Entry {
    StepMetrics metrics;
    int64_t targets = 0;
    int64_t tokens = 0;
  };
  World world_;
  at::Tensor losses_;
  at::Tensor norms_;
  std::vector<Entry> steps_;
  std::chrono::steady_clock::time_point begin_;
};

/// Numbers that all ranks have to know at the same step. On CPUs they are this step's. On a GPU
/// they are those of the step before, which the device has finished or soon will: the host never
/// waits for work that it has only just enqueued.
class SharedWishes {
 public:
  explicit SharedWishes(const World& world);
  struct Wishes {
    int64_t stop = 0;  ///< ranks that were asked to stop
    int64_t busy = 0;  ///< ranks that are still writing a checkpoint
  };
  /// Takes this rank's and returns the sums over all ranks. Collective.
  Wishes exchange(const Wishes& mine);
  /// How many steps late they are known.
  int64_t delay() const { return delay_; }

 private:
  struct Event;
  World world_;
  int64_t delay_;
  at::Tensor host_;                 // pinned on a GPU
  at::Tensor device_;               // the same tensor on CPU
  std::shared_ptr<Event> arrived_;  // the sums of the step before, in host_
};

}  // namespace sherd
