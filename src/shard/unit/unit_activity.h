// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/profile_range.h"

namespace sherd {

/// The present state of a unit: how many of its calls are under way, whether its parameters are
/// readable, and whether gradients may arrive.
class UnitActivity {
 public:
  // ---- calls -------------------------------------------------------------------------------

  /// Returns the number of calls that are under way.
  int32_t calls() const { return calls_; }
  /// Begins a call in the forward. Profilers see the outermost one, as a range with the unit's
  /// name.
  void enter_forward() {
    if (calls_++ == 0) range_.begin(forward_range_);
  }
  /// The same in the backward.
  void enter_backward() {
    if (calls_++ == 0) range_.begin(backward_range_);
  }
  /// Begins a call in which nothing is computed: profilers see nothing.
  void enter_skipped() { ++calls_; }
  /// Ends a call. Returns whether none is under way any more.
  bool leave() {
    if (--calls_ > 0) return false;
    range_.end();
    return true;
  }
  /// Ends all calls after a failure.
  void rest() noexcept {
    calls_ = 0;
    collecting_ = false;
    range_.end();
  }
  void set_unit_name(const std::string& name) {
    forward_range_ = "forward " + name;
    backward_range_ = "backward " + name;
  }

  // ---- parameters and gradients ------------------------------------------------------------

  /// Returns whether the parameters are readable.
  bool is_gathered() const { return gathered_; }
  void set_gathered() { gathered_ = true; }
  /// Returns whether sherd::gather made them readable.
  bool is_gathered_outside() const { return outside_buffers_.has_value(); }
  /// Holds what sherd::gather has gathered, until set_released().
  void set_gathered_outside(std::vector<at::Tensor> buffers) {
    outside_buffers_ = std::move(buffers);
  }
  void set_released() {
    gathered_ = false;
    outside_buffers_.reset();
  }
  /// Returns whether gradients may arrive.
  bool is_collecting() const { return collecting_; }
  void set_collecting(bool collecting) { collecting_ = collecting; }

 private:
  std::string forward_range_;
  std::string backward_range_;
  ProfileRange range_;
  int32_t calls_ = 0;
  bool gathered_ = false;
  bool collecting_ = false;
  std::optional<std::vector<at::Tensor>> outside_buffers_;
};

}  // namespace sherd
