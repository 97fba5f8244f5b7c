// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

namespace sherd {

/// A backend's link to other ranks, which must hear of it when this process leaves.
class Connection {
 public:
  virtual ~Connection() = default;
  /// Tells the other ranks that this one starts no more operations, and ends what must not outlast
  /// the process. May block, for a limited time. Any thread, any number of times; only the first
  /// call does something, and the others return after it.
  virtual void leave() noexcept = 0;
};

/// Has leave_all() leave this connection too, if it still exists by then. The first call also
/// registers leave_all() with std::exit(). Any thread.
void leave_at_exit(const std::shared_ptr<Connection>& connection);

/// Leaves all connections of this process, the newest first: it may have been opened over an older
/// one. Any thread, any number of times. A fork of the process does not do it at its exit.
void leave_all() noexcept;

}  // namespace sherd
