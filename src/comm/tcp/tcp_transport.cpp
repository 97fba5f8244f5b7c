// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/tcp_transport.h"

#include <c10/util/Exception.h>
#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "comm/tcp/mailbox.h"
#include "comm/tcp/tcp_link.h"

namespace sherd {
namespace {

/// How long the last bytes may take to the other ranks' machines.
constexpr auto kFarewellTime = std::chrono::seconds(1);

class TcpRequest final : public Transport::Request {
 public:
  explicit TcpRequest(TcpMessagePtr message) : message_(std::move(message)) {}
  ~TcpRequest() override { message_->cancelled = true; }
  TcpRequest(const TcpRequest&) = delete;
  TcpRequest& operator=(const TcpRequest&) = delete;

  bool test() override {
    TORCH_CHECK(message_->error.empty(), message_->error);
    return message_->done;
  }

 private:
  TcpMessagePtr message_;
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(int64_t rank, std::vector<Descriptor> sockets, std::vector<std::string> hosts)
      : rank_(rank),
        hosts_(std::move(hosts)),
        links_(sockets.size()),
        ready_(epoll_create1(EPOLL_CLOEXEC)) {
    TORCH_CHECK(ready_, "[comm.tcp] epoll_create1 failed: ", std::strerror(errno));
    for (size_t peer = 0; peer < sockets.size(); ++peer) {
      if (!sockets[peer]) continue;
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u64 = peer;
      TORCH_CHECK(
          epoll_ctl(ready_.number(), EPOLL_CTL_ADD, sockets[peer].number(), &event) == 0,
          "[comm.tcp] epoll_ctl failed: ", std::strerror(errno));
      links_[peer] =
          std::make_unique<TcpLink>(std::move(sockets[peer]), static_cast<int64_t>(peer), mailbox_);
    }
  }

  std::string name() const override { return "tcp"; }
  int64_t rank() const override { return rank_; }
  int64_t size() const override { return std::ssize(links_); }
  std::string host_of(int64_t rank) const override {
    return hosts_.empty() ? "" : hosts_[static_cast<size_t>(rank)];
  }

  std::unique_ptr<Request> send(int64_t peer, int tag, const void* data, int64_t bytes) override {
    auto message = std::make_shared<TcpMessage>();
    message->peer = peer;
    message->tag = tag;
    message->data = static_cast<char*>(const_cast<void*>(data));  // it is only read
    message->bytes = bytes;
    auto request = std::make_unique<TcpRequest>(message);
    link(peer).send(std::move(message));
    return request;
  }

  std::unique_ptr<Request> receive(int64_t peer, int tag, void* data, int64_t bytes) override {
    return begin_receive(peer, tag, data, bytes);
  }
  std::unique_ptr<Request> receive_any(int tag, void* data, int64_t bytes) override {
    return begin_receive(Mailbox::kAnyRank, tag, data, bytes);
  }

  void progress() override {
    std::array<epoll_event, 64> events{};
    const int count =
        epoll_wait(ready_.number(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) {
      const auto& ready = links_[events[static_cast<size_t>(i)].data.u64];
      if (ready && ready->lost().empty()) ready->read();
    }
    for (size_t peer = 0; peer < links_.size(); ++peer) {
      const auto& each = links_[peer];
      if (!each) continue;
      if (each->has_output()) each->write();
      if (!each->lost().empty()) lost_.try_emplace(static_cast<int64_t>(peer), each->lost());
    }
  }

  std::map<int64_t, std::string> lost() const override { return lost_; }

  /// Waits until the other machines have what was written; a connection that is closed earlier, and
  /// has bytes that were not read, drops it.
  void finish() override {
    const auto deadline = std::chrono::steady_clock::now() + kFarewellTime;
    for (auto& each : links_) {
      while (each && each->lost().empty() && (each->has_output() || !each->is_confirmed()) &&
             std::chrono::steady_clock::now() < deadline) {
        each->write();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      each.reset();
    }
  }

 private:
  TcpLink& link(int64_t peer) { return *links_[static_cast<size_t>(peer)]; }

  std::unique_ptr<Request> begin_receive(int64_t peer, int tag, void* data, int64_t bytes) {
    auto receive = std::make_shared<TcpMessage>();
    receive->peer = peer;
    receive->tag = tag;
    receive->data = static_cast<char*>(data);
    receive->bytes = bytes;
    receive->any_length = peer == Mailbox::kAnyRank;
    auto request = std::make_unique<TcpRequest>(receive);
    const auto early = mailbox_.take_early(peer, tag);
    if (!early) {
      mailbox_.add_receive(std::move(receive));
    } else if (receive->accepts(early->from, early->bytes)) {
      if (early->offer) {
        link(early->from).grant(*early->offer, early->bytes, std::move(receive));
      } else {
        if (early->bytes > 0) std::memcpy(data, early->data.data(), early->data.size());
        receive->done = true;
      }
    }
    return request;
  }

  int64_t rank_;
  std::vector<std::string> hosts_;  // by rank; none if there is only one host
  Mailbox mailbox_;
  std::vector<std::unique_ptr<TcpLink>> links_;  // by rank; none to this one
  Descriptor ready_;                             // epoll: connections with something to read
  std::map<int64_t, std::string> lost_;
};

}  // namespace

std::unique_ptr<Transport> tcp_transport(
    int64_t rank, std::vector<Descriptor> sockets, std::vector<std::string> hosts) {
  return std::make_unique<TcpTransport>(rank, std::move(sockets), std::move(hosts));
}

}  // namespace sherd
