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

/// Returns a CUDA stream of torch's pool, for operations that are given none.
c10::Stream communication_stream(c10::Device device, bool high_priority);

/// Returns the device's CUDA stream for messages between ranks that must get through while a
/// collective hangs. Nothing else uses it; torch's pool hands the same streams out again and again.
c10::Stream control_stream(c10::Device device);

/// Returns the calling thread's current CUDA stream on a device.
c10::Stream current_stream(c10::Device device);

/// The interface through which a StreamWatch learns of failures and ends work that hangs. Called on
/// the watch's thread.
class Abortable {
 public:
  virtual ~Abortable() = default;
  /// Returns an error message, or an empty text while all is well. `open_for`: how long the oldest
  /// unfinished work has taken so far. May block for a few seconds.
  virtual std::string failure(std::chrono::milliseconds open_for) = 0;
  /// Ends the work under way, so that its streams go on; nothing can be started any more. Only the
  /// first call does something.
  virtual void abort() = 0;
};

/// A thread that watches the work of one communicator, since the host may wait for that work in
/// ways that have no limit (a copy to the host, a stream's own synchronize). When the oldest work
/// is not done in time, or its source reports a failure, it keeps an error that begins with the
/// work's scope and aborts the source. All functions may be called on any thread.
class StreamWatch {
 public:
  explicit StreamWatch(std::shared_ptr<Abortable> source);
  ~StreamWatch();
  StreamWatch(const StreamWatch&) = delete;
  StreamWatch& operator=(const StreamWatch&) = delete;

  /// Blocks until the work under way is done or has failed, for `limit` at most. Does not throw for
  /// work that has failed.
  void wait_until_idle(std::chrono::milliseconds limit);
  /// Ends the thread. To be called before the source closes what it would abort.
  void stop();
  /// Throws the error, if there is one. Does not block.
  void check() const;
  bool has_failed() const { return failed_.load(std::memory_order_acquire); }

 private:
  friend class StreamWork;
  struct Entry;
  void add(std::shared_ptr<Entry> entry);
  void run();
  void check_oldest();
  void forget_finished();
  void record_failure(bool late) const;

  std::shared_ptr<Abortable> source_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Entry>> open_;
  bool stopping_ = false;
  std::string error_;
  std::atomic<bool> failed_{false};
  std::thread thread_;
};

/// Returns a handle to the work that was just enqueued on `stream`, whose end it marks by an event.
/// Its wait() makes the current stream wait for that event, without blocking the host. With a
/// watch, work that takes longer than `timeout` is aborted, and the handle's functions throw an
/// error that begins with `scope`; and the watch ends the work's entry in the flight recorder, at
/// most 50 ms late.
std::shared_ptr<Work::State> stream_work(
    c10::Stream stream,
    std::string scope = "",
    std::shared_ptr<StreamWatch> watch = nullptr,
    std::chrono::milliseconds timeout = {},
    uint64_t flight_entry = 0);

/// A scope in which the given stream is the current one. Without a given stream it takes the
/// communicator's own, which first waits for the current stream: the inputs are written there.
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
