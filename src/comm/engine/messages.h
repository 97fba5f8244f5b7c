// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/engine/operations.h"
#include "comm/engine/transport.h"

namespace sherd {

/// The messages of one operation that are under way. Used by the engine's thread alone; nothing
/// blocks. The memory of a message must stay valid, and the contents of a sent one unchanged, until
/// done() has returned true.
class Messages {
 public:
  /// `members` must outlive it.
  explicit Messages(const Members& members) : members_(members) {}

  /// Starts a send to a member, in pieces if it is large.
  void send(Transport& transport, int64_t peer, const void* data, int64_t bytes) {
    const auto* from = static_cast<const char*>(data);
    for (int64_t at = 0; at < bytes || at == 0; at += kLargest) {
      const int64_t length = std::min(kLargest, bytes - at);
      add(peer, transport.send(members_.world_rank(peer), members_.tag, from + at, length));
    }
  }

  /// Starts a receive from a member, which must send as many bytes.
  void receive(Transport& transport, int64_t peer, void* data, int64_t bytes) {
    auto* to = static_cast<char*>(data);
    for (int64_t at = 0; at < bytes || at == 0; at += kLargest) {
      const int64_t length = std::min(kLargest, bytes - at);
      add(peer, transport.receive(members_.world_rank(peer), members_.tag, to + at, length));
    }
  }

  /// Tests the messages under way; returns whether there are none left. Throws if one failed.
  bool done() {
    std::erase_if(under_way_, [](auto& message) { return message.request->test(); });
    return under_way_.empty();
  }

  /// Adds the world ranks of the messages under way to `ranks`, without repeats, and sorts it.
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
