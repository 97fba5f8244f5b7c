// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <memory>
#include <string>

#include "sherd/comm/communicator.h"

namespace sherd {

/// A CUDA stream that a communicator uses when it is given none.
c10::Stream communication_stream(c10::Device device, bool high_priority);

/// Who is behind the work on a stream, and can tell what is wrong with it.
class StreamKeeper {
 public:
  virtual ~StreamKeeper() = default;
  /// What has failed, in words; empty while all is well.
  virtual std::string failure() = 0;
  /// Ends what is under way; nothing can be started any more.
  virtual void give_up() = 0;
};

/// Work that was just enqueued on `stream`; marks its end by an event, for which wait() lets the
/// current stream wait. When its keeper (if any) reports a failure, or the time is up,
/// synchronize() gives up and throws an error that begins with `scope`.
std::shared_ptr<Work::State> stream_work(
    c10::Stream stream,
    std::string scope,
    std::chrono::milliseconds timeout,
    std::shared_ptr<StreamKeeper> keeper);

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
