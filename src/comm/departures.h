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

#include "comm/open_connections.h"

namespace sherd {

/// The list, in a store that all ranks share, of the ranks that have left and why. For backends
/// that would wait for ever for a rank that is gone, as NCCL does. All functions: any thread; they
/// block while the store answers.
class Departures final : public Connection {
 public:
  static constexpr std::chrono::seconds kPause{3};

  /// `pause`: least time between two readings of the store, which all ranks of a world may want to
  /// read at once.
  Departures(
      c10::intrusive_ptr<c10d::Store> store,
      int64_t rank,
      std::chrono::milliseconds pause = kPause);

  /// Writes that this rank starts no more operations, and whether an exception is ending it. Only
  /// the first call does.
  void leave() noexcept override;
  /// Returns why one of the given ranks takes no part any more, or an empty text if all do. Reads
  /// the store first if the pause is over, or if `now` is set. If the store no longer answers, the
  /// reason is that the rank which served it has left.
  std::string reason(const std::vector<int64_t>& ranks, bool now = false);

 private:
  void read_store();

  c10::intrusive_ptr<c10d::Store> store_;
  int64_t rank_;
  std::chrono::milliseconds pause_;
  std::mutex mutex_;
  bool left_ = false;  // this rank
  std::chrono::steady_clock::time_point last_read_{};
  int64_t read_count_ = 0;                  // entries of the list that were read
  std::map<int64_t, std::string> reasons_;  // by rank
  std::string store_error_;                 // empty while the store answers
};

}  // namespace sherd
