// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

namespace sherd {

struct RuntimeParts;

// Note [When something throws]
// A forward: the exception leaves the unit's boundary, whose destructor calls Runtime::abandon.
// A backward: the caller of backward() gets the exception while autograd's thread may still be at
// the node that threw, or at others. Its callback (BackwardEnd) is destroyed without a call, and
// abandons the pass; whatever the caller does next waits for that first (Runtime::notice_failure).
// Either way all units are released, StepState is `failed`, the streams keep what was issued, and
// ranks that wait for this one hear of it (Abandonment).
// The next pass, or whatever waits until the model is idle, calls recover(). If all ranks have
// given up the same pass, they go on: on CPU each issues as many collectives of it as the rank that
// came furthest, as a rank without data does, so that no operation stays open. Their results count
// for nothing: a forward is repeated, and a backward that fails ends its step's gradients,
// which the next one overwrites. If ranks were in different passes (one was through before another
// failed) or, on CUDA, have issued different numbers of collectives, all throw, now and whenever
// they try again: the next collectives would be taken for those that are missing.

/// The end of one backward. It ends in one of three ways: autograd calls its callback, destroys it
/// without (the backward threw), or the caller's thread gives up waiting for that.
class BackwardEnd {
 public:
  /// When autograd ends the backward that this thread is in: calls `finish`, or `fail` if the
  /// backward throws. Neither is called once the backward is over.
  static void queue(
      const std::shared_ptr<BackwardEnd>& end,
      std::function<void()> finish,
      std::function<void()> fail);

  /// Marks the backward as over. For any thread. Takes no lock, because `fail` calls it while
  /// fail() and wait() hold theirs.
  void set_over() { over_ = true; }
  /// Calls `fail` unless the backward is over, and wakes threads in wait().
  void fail(const std::function<void()>& fail) noexcept;
  /// Waits until the backward is over, 10 s at most; then calls `fail` if it is not. Autograd's
  /// thread may still be at a node then.
  void wait(const std::function<void()>& fail) noexcept;

 private:
  class Callback;
  std::mutex mutex_;  // two threads see the failure
  std::condition_variable ended_;
  std::atomic<bool> over_{false};
};

/// Releases everything after an exception in a pass; nothing waits for other ranks.
void release_all(RuntimeParts& parts) noexcept;
/// Goes on after an exception, or throws on all ranks: see the note. Collective.
void recover(RuntimeParts& parts);

}  // namespace sherd
