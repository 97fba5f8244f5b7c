// SPDX-License-Identifier: Apache-2.0
#include "comm/wait_time.h"

#include <atomic>

namespace sherd {
namespace {

std::atomic<int64_t> waited{0};

}  // namespace

int64_t waited_nanoseconds() {
  return waited.load(std::memory_order_relaxed);
}

void add_waited(int64_t nanoseconds) {
  waited.fetch_add(nanoseconds, std::memory_order_relaxed);
}

}  // namespace sherd
