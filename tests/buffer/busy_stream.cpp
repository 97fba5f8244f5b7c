// SPDX-License-Identifier: Apache-2.0
#include "buffer/busy_stream.h"

#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAStream.h>

namespace sherd::testing {

c10::Stream busy_stream(c10::Device device) {
  const auto stream = c10::cuda::getStreamFromPool(false, device.index());
  const c10::StreamGuard guard(stream.unwrap());
  at::cuda::sleep(100'000'000);  // cycles: over 50 ms
  return stream.unwrap();
}

}  // namespace sherd::testing
