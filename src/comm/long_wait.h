// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

namespace sherd {

/// While it lives, this thread calls `look` whenever it has waited kLongWait for an operation of
/// other ranks, again and again until the operation is done. What `look` throws ends the wait; the
/// operation itself stays under way. Scopes nest: the innermost one counts.
///
/// Waits of the mpi backend call it. On CUDA the host does not wait for operations.
class LongWaitScope {
 public:
  /// `look` must outlive the scope.
  explicit LongWaitScope(const std::function<void()>& look) noexcept;
  ~LongWaitScope();
  LongWaitScope(const LongWaitScope&) = delete;
  LongWaitScope& operator=(const LongWaitScope&) = delete;

  /// For those who wait: calls the function of the thread's innermost scope, if there is one.
  static void look();

 private:
  const std::function<void()>* outer_;
};

/// Longer than ranks that compute alike wait for each other, short for those who look on.
constexpr std::chrono::seconds kLongWait{1};

}  // namespace sherd
