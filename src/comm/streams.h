// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "sherd/comm/communicator.h"

namespace sherd {

/// A CUDA stream that a communicator uses when it is given none.
c10::Stream communication_stream(c10::Device device, bool high_priority);

/// Returns the device's CUDA stream for messages between ranks that must get through while a
/// collective hangs. Nothing else uses it; torch's pool hands the same streams out again and again.
c10::Stream control_stream(c10::Device device);

/// The stream that work on this device goes to now.
c10::Stream current_stream(c10::Device device);

/// Who is behind the work on a stream, and can tell what is wrong with it.
class StreamKeeper {
 public:
  virtual ~StreamKeeper() = default;
  /// Returns an error message, or an empty text while all is well. `open_for`: the time that the
  /// oldest unfinished work has taken so far.
  virtual std::string failure(std::chrono::milliseconds open_for) = 0;
  /// Ends what is under way; nothing can be started any more.
  virtual void give_up() = 0;
};

/// Watches the work of one communicator from a thread of its own, since the host may wait for it in
/// ways that know no limit (a copy to the host, a stream's own synchronize). When the oldest work
/// is not done in time, or the keeper reports a failure, it notes an error that begins with the
/// work's scope and makes the keeper give up.
class StreamWatch {
 public:
  explicit StreamWatch(std::shared_ptr<StreamKeeper> keeper);
  ~StreamWatch();
  StreamWatch(const StreamWatch&) = delete;
  StreamWatch& operator=(const StreamWatch&) = delete;

  /// Waits for what is under way, for this long at most.
  void wait_until_idle(std::chrono::milliseconds limit);
  /// Before the keeper closes what it keeps.
  void stop();
  /// Throws the error, if there is one.
  void check() const;
  bool has_failed() const { return failed_.load(std::memory_order_acquire); }

 private:
  friend class StreamWork;
  struct Entry;
  void add(std::shared_ptr<Entry> entry);
  void run();
  void look();
  void forget_finished();

  std::shared_ptr<StreamKeeper> keeper_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Entry>> open_;
  bool stopping_ = false;
  std::string error_;
  std::atomic<bool> failed_{false};
  std::thread thread_;
};

/// Work that was just enqueued on `stream`; marks its end by an event, for which wait() lets the
/// current stream wait. With a watch, it is watched until it is done, `timeout` at most.
std::shared_ptr<Work::State> stream_work(
    c10::Stream stream,
    std::string scope = "",
    std::shared_ptr<StreamWatch> watch = nullptr,
    std::chrono::milliseconds timeout = {});

/// While it lives, `stream` is the current one. Without one given, the communicator's own is taken,
/// and it first waits for what the current stream holds: the inputs are written there.
class StreamScope {
 public:
  StreamScope(Communicator::OnStream given, c10::Stream own);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;
  c10::Stream stream() const { return stream_; }

 private:
  c10::Stream stream_;
  c10::Stream previous_;
};

}  // namespace sherd
