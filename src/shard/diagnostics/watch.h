// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>
#include <string>
#include <vector>

#include "kernels/measure.h"
#include "shard/rank_texts.h"
#include "shard/unit.h"
#include "sherd/shard/diagnostics.h"

namespace sherd {

/// Looks at the gradients of a model, on the device and on the stream where they are made. The host
/// gets a copy of what is found, and never waits for it.
class Watch {
 public:
  /// Prepares the looks of a step, for gradients that lie where the units have them now. What was
  /// known of a parameter stays known.
  void prepare(const std::vector<Unit*>& units, int64_t micro_batches);
  void set_options(const WatchOptions& options) { options_ = options; }
  const WatchOptions& options() const { return options_; }

  /// Lets go of the gradients until prepare().
  void release() { entries_.clear(); }
  /// On the device.
  int64_t bytes() const;
  /// Declares whether gradients that are not finite are expected: the optimizer scales the loss
  /// and handles them.
  void expect_overflow(bool expected) { overflows_ = expected; }
  bool expects_overflow() const { return overflows_; }

  /// A place in the step: micro-batches count from 1.
  struct Moment {
    int64_t step = 0;
    int64_t micro_batch = 0;
    bool last = false;  ///< look at the step's gradients
  };
  /// At this rank's own gradients, once a unit has them all; on the compute stream.
  void look_before_reduction(int32_t unit, int32_t group, const Moment& moment);
  /// At the main gradients that were accumulated just now; on their stream.
  void look_after_reduction(int32_t unit, int32_t group, const Moment& moment);

  /// At the end of a step: tells the host, some time.
  void copy_to_host();
  /// Whether it has arrived that something was found.
  bool has_findings();
  /// This rank's findings, as lines for merge(), and forgets them. Blocks; nothing may be under
  /// way.
  std::string take(int64_t rank);
  /// Forgets what was found in a step. Blocks; nothing may be under way.
  void forget(int64_t step);
  /// The findings of all ranks: earliest first, each parameter once, or once for each rank that is
  /// known to have had it.
  static std::vector<Finding> merge(const std::vector<Statement>& ranks);

 private:
  struct Entry {
    Measurement local;    // before the reduction
    Measurement reduced;  // after it
    int64_t first = 0;    // of its parameters, among all that are trainable
    int64_t count = 0;    // 0: not watched
    bool sharded = false;
  };
  Entry& entry(int32_t unit, int32_t group);
  void look(const Measurement& measurement, int64_t first, const Look& look);
  bool looks_at_local(bool sharded, bool last) const;
  Look look_at(const Moment& moment) const;

  WatchOptions options_;
  std::vector<std::vector<Entry>> entries_;  // by unit and group
  std::vector<std::string> names_;
  // For each parameter: of what it is before the reduction, then of all, after it.
  at::Tensor watched_;
  at::Tensor sums_;
  at::Tensor host_;  // where the host reads them
  std::optional<c10::Event> told_;
  bool listening_ = false;
  bool overflows_ = false;
};

}  // namespace sherd
