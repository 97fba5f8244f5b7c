// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/operation.h"

#include <c10/util/ScopeExit.h>
#include <sched.h>

#include "comm/long_wait.h"
#include "comm/wait_time.h"

namespace sherd {

void Operation::wait() {
  if (!done()) {
    const auto begin = Clock::now();
    const auto counted = c10::make_scope_exit(
        [begin] { add_waited(std::chrono::nanoseconds(Clock::now() - begin).count()); });
    wait_until_done();
  }
  if (error_) std::rethrow_exception(error_);
}

void Operation::wait_until_done() {
  const auto asleep = Clock::now() + kSpinTime;
  while (!done() && Clock::now() < asleep) sched_yield();
  if (!done()) {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kLongWait, [&] { return done(); })) {
      lock.unlock();
      LongWaitScope::look();
      lock.lock();
    }
  }
}

void Operation::finish(std::exception_ptr error) {
  {
    std::lock_guard lock(mutex_);
    error_ = std::move(error);
    done_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

}  // namespace sherd
