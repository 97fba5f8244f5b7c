// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sherd {

/// A message under way, at one of its ends: its request and the link that moves it share it.
struct TcpMessage {
  int64_t peer = 0;  ///< the other end, or Mailbox::kAnyRank
  int tag = 0;
  char* data = nullptr;
  int64_t bytes = 0;        ///< its length; of a receive the length expected
  bool any_length = false;  ///< of a receive: it may also be shorter
  int64_t moved = 0;        ///< bytes in pieces that are complete
  bool done = false;
  bool cancelled = false;  ///< its memory must not be touched any more
  std::string error{};     ///< of a receive: why it failed

  /// For a receive: returns whether a message of this length may be written to it. Otherwise it
  /// has failed.
  bool accepts(int64_t from, int64_t length);
};
using TcpMessagePtr = std::shared_ptr<TcpMessage>;

/// Brings together receives and the messages of other ranks, by sender, tag and order. Whichever
/// comes first waits here.
class Mailbox {
 public:
  static constexpr int64_t kAnyRank = -1;

  /// A message that came before its receive. Of a large one only the offer came.
  struct Early {
    int64_t from = 0;
    int64_t bytes = 0;
    std::vector<char> data{};
    std::optional<int64_t> offer{};
  };

  void add_receive(TcpMessagePtr receive);
  /// Returns the receive that a message is for, and removes it; null if it is not posted yet.
  TcpMessagePtr take_receive(int64_t from, int tag);
  void add_early(int tag, Early early);
  /// Returns the oldest message for a receive and removes it. `from` may be kAnyRank.
  std::optional<Early> take_early(int64_t from, int tag);

 private:
  using Key = std::pair<int64_t, int>;                 // rank, tag
  std::map<Key, std::deque<TcpMessagePtr>> receives_;  // none of them empty
  std::map<Key, std::deque<Early>> early_;             // none of them empty
};

}  // namespace sherd
