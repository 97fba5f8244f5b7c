// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace sherd {

/// A communicator whose ranks can leave notices for each other on the host, beside all operations:
/// they arrive whatever the ranks wait for. Any thread.
class HasNotices {
 public:
  virtual ~HasNotices() = default;
  /// Sends a notice to all other ranks of the world, in place of this rank's last one. About 1000
  /// bytes of it arrive. Returns at once, and does not throw.
  virtual void leave_notice(const std::string& text) noexcept = 0;
  /// Returns the last notice of each other rank, by rank, as far as they have arrived.
  virtual std::map<int64_t, std::string> notices() = 0;
};

}  // namespace sherd
