// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>
#include <string>
#include <vector>

#include "kernels/measure.h"
#include "shard/rank_texts.h"
#include "shard/unit/unit.h"
#include "sherd/shard/diagnostics.h"

namespace sherd {

/// The gradient watch: checks the gradients of a model on the device, on the stream that writes
/// them. Findings reach the host by an asynchronous copy.
class Watch {
 public:
  /// Prepares the checks for the present addresses of the gradients. Findings and mean norms are
  /// kept if the parameters are the same.
  void prepare(const std::vector<Unit*>& units, int64_t micro_batches);
  void set_options(const WatchOptions& options) { options_ = options; }
  const WatchOptions& options() const { return options_; }

  /// Drops all references to gradients until prepare().
  void release() { entries_.clear(); }
  /// Returns the bytes that it has allocated on the device.
  int64_t bytes() const;
  /// Declares that gradients may overflow, so that it reports only explosions: the optimizer scales
  /// the loss and skips such steps.
  void expect_overflow(bool expected) { overflows_ = expected; }
  bool expects_overflow() const { return overflows_; }

  /// A point in training; steps and micro-batches count from 1.
  struct Moment {
    int64_t step = 0;
    int64_t micro_batch = 0;
    bool last = false;  ///< last check of the step's gradients
  };
  /// Checks this rank's own gradients of a group once they are complete; on the compute stream.
  void look_before_reduction(int32_t unit, int32_t group, const Moment& moment);
  /// Checks main gradients that were just accumulated; on the stream that did it.
  void look_after_reduction(int32_t unit, int32_t group, const Moment& moment);

  /// Starts the copy to the host, at the end of a step. Does not block; no effect while an earlier
  /// copy is under way.
  void copy_to_host();
  /// Returns whether a copy has arrived that has findings. Does not block.
  bool has_findings();
  /// Returns this rank's findings as lines for merge(), and forgets them. Blocks; nothing may be
  /// under way.
  std::string take(int64_t rank);
  /// Forgets the findings of a step. Blocks; nothing may be under way.
  void forget(int64_t step);
  /// Returns the findings of all ranks, earliest first: one per parameter, or one for each rank
  /// that is known to have caused it.
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
  // First the entries of all parameters before the reduction, then those after it.
  at::Tensor watched_;
  at::Tensor sums_;
  at::Tensor host_;  // their copy on the host
  std::optional<c10::Event> told_;
  bool listening_ = false;
  bool overflows_ = false;
};

}  // namespace sherd
