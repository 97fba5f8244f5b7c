// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/mpi/operations.h"
#include "comm/mpi/transport.h"

namespace sherd {

/// A set of messages under way, among the members of one operation.
class Messages {
 public:
  explicit Messages(const Members& members) : members_(members) {}

  void send(Transport& transport, int64_t peer, const void* data, int64_t bytes) {
    const auto* from = static_cast<const char*>(data);
    for (int64_t at = 0; at < bytes || at == 0; at += kLargest) {
      const int64_t length = std::min(kLargest, bytes - at);
      add(peer, transport.send(members_.world_rank(peer), members_.tag, from + at, length));
    }
  }

  void receive(Transport& transport, int64_t peer, void* data, int64_t bytes) {
    auto* to = static_cast<char*>(data);
    for (int64_t at = 0; at < bytes || at == 0; at += kLargest) {
      const int64_t length = std::min(kLargest, bytes - at);
      add(peer, transport.receive(members_.world_rank(peer), members_.tag, to + at, length));
    }
  }

  /// Whether all have arrived and left.
  bool done() {
    std::erase_if(under_way_, [](auto& message) { return message.request->test(); });
    return under_way_.empty();
  }

  void add_peers(std::vector<int64_t>& ranks) const {
    for (const auto& message : under_way_) {
      const int64_t rank = members_.world_rank(message.peer);
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
    }
    std::sort(ranks.begin(), ranks.end());
  }

 private:
  struct Message {
    int64_t peer;
    std::unique_ptr<Transport::Request> request;
  };

  void add(int64_t peer, std::unique_ptr<Transport::Request> request) {
    under_way_.push_back({peer, std::move(request)});
  }

  static constexpr int64_t kLargest = int64_t{1} << 30;  // MPI counts bytes in an int
  const Members& members_;
  std::vector<Message> under_way_;
};

}  // namespace sherd
