// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <optional>

namespace sherd {

/// A scope in which no gradients are recorded and new tensors are normal ones, even if the caller
/// is in c10::InferenceMode. A buffer that outlives the call is written by later training steps,
/// which torch refuses for tensors made in inference mode.
class OutsideInference {
 public:
  OutsideInference() {
    if (c10::InferenceMode::is_enabled()) normal_.emplace(false);
    no_grad_.emplace();
  }

 private:
  std::optional<c10::InferenceMode> normal_;
  std::optional<c10::NoGradGuard> no_grad_;  // ends first: it restores the mode before
};

}  // namespace sherd
