// SPDX-License-Identifier: Apache-2.0
// Any bytes are an order of calls and calls that resemble it; the tracker must follow them.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "plan/call_tracker_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  size_t next = 0;
  const auto broken = sherd::testing::check_random_calls(
      [&](uint32_t count) { return next < size ? data[next++] % count : 0; });
  if (!broken.empty()) {
    std::fprintf(stderr, "%s\n", broken.c_str());
    std::abort();
  }
  return 0;
}
