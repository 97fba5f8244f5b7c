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

/// The losses and norms of the latest steps. They stay on the device until take() is called;
/// nothing waits for the device before.
class StepLog {
 public:
  static constexpr int64_t kMost = 1024;  ///< steps that it holds

  explicit StepLog(const World& world);
  /// To be called before a step.
  void begin();
  /// Adds a step. `loss`: the sum over this rank's targets; `norm`: the norm of the gradients; one
  /// element each, on the device. `targets` and `tokens` are those of all ranks.
  void add(
      const StepMetrics& known,
      const at::Tensor& loss,
      const at::Tensor& norm,
      int64_t targets,
      int64_t tokens);
  /// Adds to the newest step how fast the ranks were in it.
  void add_speeds(const RankSpeeds& speeds);
  bool empty() const { return steps_.empty(); }
  bool full() const { return std::ssize(steps_) == kMost; }
  /// Returns the steps since the last call; their times are means over these steps. Collective;
  /// waits for the device.
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

/// What ranks tell each other after each step, in one all-reduce: how fast they were, and requests
/// of single ranks that all must learn of at the same step. On CPUs they are those
/// of this step; on a GPU those of the step before, so that the host never waits for work that it
/// has just enqueued.
class SharedWishes {
 public:
  explicit SharedWishes(const World& world);
  struct Wishes {
    bool stop = false;  ///< a rank was asked to stop
    bool busy = false;  ///< a rank is still writing a checkpoint
    RankSpeeds step{};  ///< in the step; of one rank alone, `slowest` is its time
    RankSpeeds mean{};  ///< in the last steps
  };
  /// Gives this rank's requests and times, and returns those of all ranks. Collective.
  Wishes exchange(const Wishes& mine);
  /// Returns by how many steps the answer is late.
  int64_t delay() const { return delay_; }

 private:
  struct Event;
  World world_;
  int64_t delay_;
  at::Tensor host_;                 // pinned on a GPU
  at::Tensor device_;               // the same tensor on CPU
  std::shared_ptr<Event> arrived_;  // the answer of the step before, in host_
};

}  // namespace sherd
