// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/submissions.h"

#include <c10/util/Exception.h>

#include <utility>

namespace sherd {

void Submissions::add(int lane, std::shared_ptr<Operation> operation, Milliseconds timeout) {
  {
    std::lock_guard lock(mutex_);
    if (end_.stopped) {
      operation->finish(std::make_exception_ptr(c10::DistBackendError(
          {__func__, __FILE__, __LINE__}, operation->scope() + "the world is closed")));
      return;
    }
    entries_.push_back({lane, std::move(operation), timeout, counts_[lane]++});
    any_.store(true, std::memory_order_release);
  }
  changed_.notify_one();
}

void Submissions::wake() {
  {
    std::lock_guard lock(mutex_);
    any_.store(true, std::memory_order_release);
  }
  changed_.notify_one();
}

void Submissions::stop(bool by_exception) {
  {
    std::lock_guard lock(mutex_);
    end_ = {.stopped = true, .by_exception = by_exception};
    any_ = true;
  }
  changed_.notify_all();
}

Submissions::End Submissions::take(Lanes& lanes) {
  std::lock_guard lock(mutex_);
  for (auto& entry : entries_) lanes.add(std::move(entry));
  entries_.clear();
  if (!end_.stopped) any_ = false;
  return end_;
}

bool Submissions::wait(Milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [&] { return any_.load(); });
}

LaneCounts Submissions::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace sherd
