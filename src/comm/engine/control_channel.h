// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "comm/engine/transport.h"

namespace sherd {

/// Short texts between the engines of all ranks, independent of the operations. Used by one thread
/// at a time; nothing blocks. Its address is fixed, because the transport reads and writes its
/// buffers.
class ControlChannel {
 public:
  /// The meaning of a message.
  enum class Kind : int32_t {
    failure,   ///< an error has ended the sender's operations; the text says which
    leaving,   ///< the sender starts no more operations; the text says how many it has started
    question,  ///< the sender waits for the receiver: which operation is that one in?
    answer,    ///< the text says it
    notice,    ///< a text that the sender leaves for all ranks: see HasNotices
  };
  /// A message as it is sent.
  struct Message {
    Kind kind{};
    int32_t rank = 0;               ///< rank of the sender
    std::array<char, 1016> text{};  ///< ends with a zero
  };

  /// `transport` must outlive it.
  explicit ControlChannel(Transport& transport) : transport_(transport) {}
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  /// Starts a send and returns at once; the text is copied, and cut if it is too long.
  void send(int64_t peer, Kind kind, const std::string& text);
  /// Starts a send to every other rank.
  void send_to_all(Kind kind, const std::string& text);
  /// Returns the next message, if one has arrived.
  std::optional<Message> receive();
  /// Lets the transport go on with the messages that are being sent; returns whether all have been.
  bool flush_some();
  /// Receives no more messages.
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
