// SPDX-License-Identifier: Apache-2.0
#include "comm/long_wait.h"

#include <thread>
#include <utility>

namespace sherd {
namespace {

thread_local const std::function<void()>* innermost_look = nullptr;

}  // namespace

LongWaitScope::LongWaitScope(const std::function<void()>& look) noexcept
    : outer_(std::exchange(innermost_look, &look)) {}

LongWaitScope::~LongWaitScope() {
  innermost_look = outer_;
}

void LongWaitScope::look() {
  if (innermost_look) (*innermost_look)();
}

void LongWait::pause() {
  std::this_thread::sleep_for(std::chrono::microseconds(100));
  if (std::chrono::steady_clock::now() < next_look_) return;
  LongWaitScope::look();
  next_look_ = std::chrono::steady_clock::now() + kLongWait;
}

}  // namespace sherd
