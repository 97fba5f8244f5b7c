// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/tcp_link.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace sherd {
namespace {

constexpr int64_t kLargestUnasked = 64 << 10;  // bytes of a message that is sent without an offer
constexpr int64_t kPiece = 1 << 20;
constexpr int64_t kReadAhead = 16 << 10;
constexpr int kReadsAtOnce = 8;  // then other connections have their turn

constexpr const char* kNotAMessage = "it sent bytes that are no message of this version of Sherd";

}  // namespace

TcpLink::TcpLink(Descriptor socket, int64_t peer, Mailbox& mailbox)
    : socket_(std::move(socket)), peer_(peer), mailbox_(mailbox), buffer_(kReadAhead) {}

bool TcpLink::is_confirmed() const {
  int waiting = 0;
  return !socket_ || ioctl(socket_.number(), SIOCOUTQ, &waiting) != 0 || waiting == 0;
}

int64_t TcpLink::body_size(const Header& header) {
  return header.kind == Kind::message || header.kind == Kind::piece ? header.bytes : 0;
}

// ---- out ---------------------------------------------------------------------------------------

void TcpLink::send(TcpMessagePtr message) {
  if (!can_write_) {
    message->done = true;
    return;
  }
  const bool is_large = message->bytes > kLargestUnasked;
  const int64_t offer = is_large ? next_offer_++ : 0;
  if (is_large) offered_[offer] = message;
  frames_.push_back(
      {{is_large ? Kind::offer : Kind::message, message->tag, message->bytes, offer},
       std::move(message)});
  write();
}

void TcpLink::grant(int64_t offer, int64_t bytes, TcpMessagePtr receive) {
  if (!can_write_) return;
  incoming_[offer] = {std::move(receive), bytes};
  frames_.push_back({{Kind::grant, 0, 0, offer}});
  write();
}

void TcpLink::write() {
  while (can_write_ && (current_ || next_frame())) {
    auto& [header, message, written] = *current_;
    const int64_t body = body_size(header);
    if (body > 0 && message->cancelled) return lose("a message to it was given up half-way");
    constexpr int64_t kHeader = sizeof(Header);
    std::array<iovec, 2> parts{};
    msghdr what{};
    what.msg_iov = parts.data();
    if (written < kHeader) {
      parts[what.msg_iovlen++] = {
          reinterpret_cast<char*>(&header) + written, static_cast<size_t>(kHeader - written)};
    }
    const int64_t at = std::max<int64_t>(written - kHeader, 0);
    if (at < body) {
      parts[what.msg_iovlen++] = {
          message->data + message->moved + at, static_cast<size_t>(body - at)};
    }
    const auto sent = sendmsg(socket_.number(), &what, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) stop_writing();
      return;
    }
    written += sent;
    if (written == kHeader + body) finish_outgoing();
  }
}

/// Chooses the next frame to write; false if there is none.
bool TcpLink::next_frame() {
  while (!frames_.empty() && !current_) {
    auto& next = frames_.front();
    const bool given_up = next.message && next.message->cancelled;
    if (!given_up) current_ = std::move(next);
    frames_.pop_front();
  }
  while (!granted_.empty() && !current_) {
    auto [offer, message] = std::move(granted_.front());
    granted_.pop_front();
    if (message->cancelled) continue;
    const int64_t bytes = std::min(kPiece, message->bytes - message->moved);
    current_ = Outgoing{{Kind::piece, 0, bytes, offer}, std::move(message)};
  }
  return current_.has_value();
}

void TcpLink::finish_outgoing() {
  const auto [header, message, written] = std::move(*current_);
  current_.reset();
  if (header.kind == Kind::message) message->done = true;
  if (header.kind != Kind::piece) return;
  message->moved += header.bytes;
  message->done = message->moved == message->bytes;
  if (!message->done) granted_.emplace_back(header.offer, message);
}

void TcpLink::stop_writing() {
  can_write_ = false;
  const auto drop = [](const TcpMessagePtr& message) {
    if (message) message->done = true;
  };
  if (current_) drop(current_->message);
  for (const auto& frame : frames_) drop(frame.message);
  for (const auto& [offer, message] : granted_) drop(message);
  for (const auto& [offer, message] : offered_) drop(message);
  current_.reset();
  frames_.clear();
  granted_.clear();
  offered_.clear();
}

// ---- in ----------------------------------------------------------------------------------------

void TcpLink::read() {
  for (int i = 0; i < kReadsAtOnce && lost_.empty(); ++i) {
    if (!receive_some()) return;
  }
}

/// Reads once; returns whether there may be more.
bool TcpLink::receive_some() {
  std::array<iovec, 2> parts{};
  msghdr what{};
  what.msg_iov = parts.data();
  char* target = body_target();
  const int64_t direct = target == nullptr ? 0 : body_left_;
  const int64_t ahead = kReadAhead - buffered_;
  if (direct > 0) parts[what.msg_iovlen++] = {target, static_cast<size_t>(direct)};
  // Bytes for a receive that was given up are read into the buffer, too.
  parts[what.msg_iovlen++] = {buffer_.data() + buffered_, static_cast<size_t>(ahead)};
  ssize_t count = 0;
  do {
    count = recvmsg(socket_.number(), &what, MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);
  if (count < 0) {
    if (errno != EAGAIN && errno != EWOULDBLOCK) lose(std::strerror(errno));
    return false;
  }
  if (count == 0) {
    lose("it has closed the connection");
    return false;
  }
  const int64_t taken = std::min<int64_t>(count, direct);
  body_read_ += taken;
  body_left_ -= taken;
  buffered_ += count - taken;
  if (taken > 0 && body_left_ == 0) end_frame();
  parse_buffer();
  return count == direct + ahead;
}

/// Returns where the next bytes of the frame's body go; null if they are dropped, or if there are
/// none.
char* TcpLink::body_target() {
  if (body_left_ == 0) return nullptr;
  if (early_) return early_->data.data() + body_read_;
  if (!receive_ || receive_->cancelled) return nullptr;
  return receive_->data + receive_->moved + body_read_;
}

void TcpLink::parse_buffer() {
  int64_t at = 0;
  while (lost_.empty()) {
    if (body_left_ > 0) {
      const int64_t bytes = std::min(body_left_, buffered_ - at);
      char* target = body_target();
      if (target != nullptr && bytes > 0)
        std::memcpy(target, buffer_.data() + at, static_cast<size_t>(bytes));
      at += bytes;
      body_read_ += bytes;
      body_left_ -= bytes;
      if (body_left_ > 0) break;
      end_frame();
    } else {
      if (buffered_ - at < static_cast<int64_t>(sizeof(Header))) break;
      std::memcpy(&header_, buffer_.data() + at, sizeof(Header));
      at += sizeof(Header);
      begin_frame();
    }
  }
  buffered_ -= at;
  if (at > 0 && buffered_ > 0)
    std::memmove(buffer_.data(), buffer_.data() + at, static_cast<size_t>(buffered_));
}

void TcpLink::begin_frame() {
  body_read_ = 0;
  receive_ = nullptr;
  switch (header_.kind) {
    case Kind::message: begin_message(); break;
    case Kind::offer: begin_offer(); break;
    case Kind::grant: send_granted(); break;
    case Kind::piece: begin_piece(); break;
    default: lose(kNotAMessage);
  }
}

void TcpLink::begin_message() {
  if (header_.bytes < 0 || header_.bytes > kLargestUnasked) return lose(kNotAMessage);
  body_left_ = header_.bytes;
  receive_ = mailbox_.take_receive(peer_, header_.tag);
  if (!receive_) {
    early_.emplace(Mailbox::Early{peer_, header_.bytes});
    early_->data.resize(static_cast<size_t>(header_.bytes));
  } else if (!receive_->accepts(peer_, header_.bytes)) {
    receive_ = nullptr;
  }
  if (body_left_ == 0) end_frame();
}

void TcpLink::begin_offer() {
  if (header_.bytes <= kLargestUnasked) return lose(kNotAMessage);
  auto receive = mailbox_.take_receive(peer_, header_.tag);
  if (!receive) {
    mailbox_.add_early(header_.tag, {peer_, header_.bytes, {}, header_.offer});
  } else if (receive->accepts(peer_, header_.bytes)) {
    grant(header_.offer, header_.bytes, std::move(receive));
  }
}

void TcpLink::begin_piece() {
  const auto found = incoming_.find(header_.offer);
  if (found == incoming_.end()) return lose(kNotAMessage);
  const auto& [receive, bytes] = found->second;
  if (header_.bytes <= 0 || header_.bytes > bytes - receive->moved) return lose(kNotAMessage);
  body_left_ = header_.bytes;
  receive_ = receive;
}

void TcpLink::send_granted() {
  const auto found = offered_.find(header_.offer);
  if (found == offered_.end()) {
    if (can_write_) lose(kNotAMessage);
    return;
  }
  granted_.emplace_back(*found);
  offered_.erase(found);
}

/// The body of a message or piece is complete.
void TcpLink::end_frame() {
  if (early_) {
    auto early = *std::exchange(early_, std::nullopt);
    // Its receive may have been posted while the bytes came.
    const auto receive = mailbox_.take_receive(peer_, header_.tag);
    if (!receive) return mailbox_.add_early(header_.tag, std::move(early));
    if (!receive->accepts(peer_, early.bytes)) return;
    if (early.bytes > 0) std::memcpy(receive->data, early.data.data(), early.data.size());
    receive->done = true;
  } else if (const auto receive = std::exchange(receive_, nullptr)) {
    receive->moved += header_.bytes;
    if (header_.kind == Kind::message) {
      receive->done = true;
    } else if (receive->moved == incoming_.at(header_.offer).bytes) {
      receive->done = true;
      incoming_.erase(header_.offer);
    }
  }
}

void TcpLink::lose(const std::string& reason) {
  stop_writing();
  lost_ = reason;
  socket_.close();
}

}  // namespace sherd
