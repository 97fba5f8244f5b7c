// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace sherd {

/// Tells the ranks that share a store which of them have left, and why. NCCL itself would wait for
/// ever for a rank that is gone. Any thread.
class Departures {
 public:
  static constexpr std::chrono::seconds kPause{3};

  /// `pause`: how often the store is asked, at most: all ranks of a world may wait at once.
  Departures(
      c10::intrusive_ptr<c10d::Store> store,
      int64_t rank,
      std::chrono::milliseconds pause = kPause);

  /// Leaves word that this rank starts no more operations, and whether an exception is ending it;
  /// once. Does not throw.
  void announce() noexcept;
  /// Returns why one of the given ranks takes no part any more, as far as the store has been asked
  /// (with `now`, it is asked whatever the pause); empty if all do. A store that no longer answers
  /// went with the rank that served it.
  std::string reason(const std::vector<int64_t>& ranks, bool now = false);

 private:
  void ask();

  c10::intrusive_ptr<c10d::Store> store_;
  int64_t rank_;
  std::chrono::milliseconds pause_;
  std::mutex mutex_;
  bool announced_ = false;
  std::chrono::steady_clock::time_point asked_{};
  int64_t known_ = 0;                    // departures that were read
  std::map<int64_t, std::string> left_;  // by rank
  std::string lost_;                     // why the store does not answer
};

}  // namespace sherd
