// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace sherd {

/// The notices that ranks leave for each other (see HasNotices): this rank's until it is sent, and
/// the last one of each other rank. Any thread.
class NoticeBoard {
 public:
  /// Keeps this rank's notice until take_own(), in place of an earlier one.
  void set_own(const std::string& text) {
    const std::lock_guard lock(mutex_);
    own_ = text;
  }
  /// Returns this rank's notice, once; empty if there is none.
  std::string take_own() {
    const std::lock_guard lock(mutex_);
    return std::exchange(own_, {});
  }
  void set(int64_t rank, const std::string& text) {
    const std::lock_guard lock(mutex_);
    others_[rank] = text;
  }
  std::map<int64_t, std::string> others() const {
    const std::lock_guard lock(mutex_);
    return others_;
  }

 private:
  mutable std::mutex mutex_;
  std::string own_;
  std::map<int64_t, std::string> others_;  // by rank
};

}  // namespace sherd
