// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/cast_copy.h"
#include "shard/group/group_layout.h"

namespace sherd {

/// The buffer of full gradients that autograd's results of one group are written to: the group's
/// slot where gradients are sharded, otherwise the main gradient. The first gradient of a parameter
/// overwrites, later ones add. Copies run on the current stream.
class GradientInbox {
 public:
  explicit GradientInbox(const GroupLayout& layout)
      : layout_(layout), written_(layout.size(), false), received_(layout.size(), false) {}
  GradientInbox(const GradientInbox&) = delete;
  GradientInbox& operator=(const GradientInbox&) = delete;

  /// Sets the buffer, which has the full size; an undefined tensor means none.
  void set_buffer(const at::Tensor& full);
  /// Returns where each parameter's gradient is written, in its shape; empty without a buffer.
  const std::vector<at::Tensor>& targets() const { return targets_; }

  /// Starts a new pass (where gradients are sharded) or step: the next gradient of each parameter
  /// overwrites.
  void mark_all_unwritten();
  /// A step begins: no parameter has received a gradient in it.
  void begin_step();
  /// Returns whether a parameter has received a gradient since the step began.
  bool received_in_step(size_t member) const { return received_[member]; }
  /// Writes or adds the gradient of a parameter. On CUDA small ones are held back and copied
  /// together with later ones.
  void receive(size_t member, const at::Tensor& gradient);
  /// The buffer of one parameter's gradient, for callers that write the gradient themselves.
  struct Target {
    at::Tensor buffer;      ///< in the parameter's shape
    bool overwrite = true;  ///< write to it; otherwise add to it
  };
  /// Returns the target of a parameter, which counts as written from now on.
  Target take_target(size_t member);
  /// Copies the gradients that are held back.
  void flush();
  /// Copies the gradients that are held back, and zeroes those of parameters that received none.
  void zero_unwritten();
  /// Discards the gradients that are held back.
  void drop_pending();

 private:
  const GroupLayout& layout_;
  std::vector<at::Tensor> targets_;
  std::vector<bool> written_;   // in this pass or step
  std::vector<bool> received_;  // in this step
  std::vector<CastCopy> pending_;
  std::vector<at::Tensor> pending_sources_;  // keep their memory until it is copied
  c10::ScalarType pending_dtype_{};
  int64_t pending_bytes_ = 0;
};

}  // namespace sherd
