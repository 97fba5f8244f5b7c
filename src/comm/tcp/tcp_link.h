// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/tcp/descriptor.h"
#include "comm/tcp/mailbox.h"

namespace sherd {

// Note [How a message travels]
//
// A connection carries frames: a header and, with some kinds, bytes.
// - A small message is one frame. If its receive is not posted yet, the receiver keeps the bytes.
// - A large one is offered first. Its receiver grants it once the receive is posted, and then its
//   pieces come, which are read straight into the receive's memory. So a rank that is ahead takes
//   no memory of the others, and large messages are not copied between sockets and tensors.
// Pieces of different messages take turns, and other frames go before them: an announcement never
// waits for a whole tensor. Only small messages and offers have an order, per tag.

/// The connection to one other rank, in both directions. Used by one thread at a time; no function
/// blocks or throws. When the connection breaks, everything that was to be sent counts as sent, and
/// receives stay open.
class TcpLink {
 public:
  /// `socket` is connected to the rank `peer` and does not block. `mailbox` must outlive the link.
  TcpLink(Descriptor socket, int64_t peer, Mailbox& mailbox);

  int socket() const { return socket_.number(); }
  /// Returns why the connection is lost, or an empty text.
  const std::string& lost() const { return lost_; }
  /// Returns whether write() has something to do.
  bool has_output() const { return current_ || !frames_.empty() || !granted_.empty(); }
  /// Returns whether the peer's machine has confirmed all bytes that were written.
  bool is_confirmed() const;

  /// Queues a message and writes as much as possible.
  void send(TcpMessagePtr message);
  /// Has the peer send the message that it offered under this number.
  void grant(int64_t offer, int64_t bytes, TcpMessagePtr receive);
  /// Writes until the socket takes no more.
  void write();
  /// Reads what has arrived, a limited amount at a time.
  void read();

 private:
  enum class Kind : int32_t { message, offer, grant, piece };
  /// What comes first in a frame. The ranks' machines have one byte order: ranks introduce
  /// themselves with an integer in it.
  struct Header {
    Kind kind{};
    int32_t tag = 0;    ///< message, offer
    int64_t bytes = 0;  ///< length of the message or piece
    int64_t offer = 0;  ///< offer, grant, piece: the sender's number of the message
  };
  struct Outgoing {
    Header header;
    TcpMessagePtr message{};  // null in a grant
    int64_t written = 0;      // of header and bytes together
  };
  struct Incoming {
    TcpMessagePtr receive;
    int64_t bytes;
  };

  static int64_t body_size(const Header& header);
  bool next_frame();
  void finish_outgoing();
  void stop_writing();

  bool receive_some();
  char* body_target();
  void parse_buffer();
  void begin_frame();
  void begin_message();
  void begin_offer();
  void begin_piece();
  void send_granted();
  void end_frame();
  void lose(const std::string& reason);

  Descriptor socket_;
  int64_t peer_;
  Mailbox& mailbox_;
  std::string lost_;

  std::optional<Outgoing> current_;                        // partly written
  std::deque<Outgoing> frames_;                            // those with an order
  std::deque<std::pair<int64_t, TcpMessagePtr>> granted_;  // with pieces left, by offer
  std::map<int64_t, TcpMessagePtr> offered_;
  int64_t next_offer_ = 0;
  bool can_write_ = true;

  std::vector<char> buffer_;  // bytes that were read ahead
  int64_t buffered_ = 0;      // how many
  Header header_;             // of the frame that is being read
  int64_t body_read_ = 0;
  int64_t body_left_ = 0;  // above 0: the buffer is empty
  TcpMessagePtr receive_;  // where the body goes; null: early_, or nowhere
  std::optional<Mailbox::Early> early_;
  std::map<int64_t, Incoming> incoming_;  // granted messages, by offer
};

}  // namespace sherd
