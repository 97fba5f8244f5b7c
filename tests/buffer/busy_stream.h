// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <functional>
#include <optional>

namespace sherd::testing {

/// A CUDA stream that is still asleep for a good while.
c10::Stream busy_stream(c10::Device device);

/// Calls with that stream, if any, as the current one.
inline void with_stream(std::optional<c10::Stream> stream, const std::function<void()>& call) {
  const c10::OptionalStreamGuard guard(stream);
  call();
}

}  // namespace sherd::testing
