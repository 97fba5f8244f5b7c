// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "comm/mpi/transport.h"

namespace sherd {

/// Short messages between the engines of all ranks, beside the operations. Used by one thread at a
/// time.
class ControlChannel {
 public:
  enum class Kind : int32_t {
    failure,   ///< an error has ended the sender's operations; the text says which
    leaving,   ///< the sender starts no more operations; the text says how many it has started
    question,  ///< what does the receiver wait for?
    answer,
    notice,  ///< a text that the sender leaves for all ranks: see HasNotices
  };
  struct Message {
    Kind kind{};
    int32_t rank = 0;  ///< the sender's
    std::array<char, 1016> text{};
  };

  explicit ControlChannel(Transport& transport) : transport_(transport) {}

  /// Longer texts are cut. Returns at once.
  void send(int64_t peer, Kind kind, const std::string& text);
  void send_to_all(Kind kind, const std::string& text);
  /// Returns the next message, if one has come.
  std::optional<Message> receive();
  /// Whether all messages have left.
  bool is_flushed();
  /// Receives no more.
  void close() { request_.reset(); }

 private:
  struct Outgoing {
    Message message;
    std::unique_ptr<Transport::Request> request;
  };

  Transport& transport_;
  Message incoming_;
  std::unique_ptr<Transport::Request> request_;
  std::list<Outgoing> outgoing_;  // the transport reads from it
};

}  // namespace sherd
