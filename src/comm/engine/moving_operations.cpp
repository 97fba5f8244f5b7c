// SPDX-License-Identifier: Apache-2.0
// The operations that only move bytes.
#include <cstring>
#include <utility>

#include "comm/engine/messages.h"
#include "comm/engine/operations.h"

namespace sherd {
namespace {

class MovingOperation : public Operation {
 public:
  MovingOperation(std::string scope, Members members)
      : Operation(std::move(scope)), members_(std::move(members)), messages_(members_) {}

  bool advance(Transport&) override { return messages_.done(); }

  std::vector<int64_t> waits_for() const override {
    std::vector<int64_t> ranks;
    messages_.add_peers(ranks);
    return ranks;
  }

 protected:
  Members members_;
  Messages messages_;
};

class AllGather final : public MovingOperation {
 public:
  AllGather(std::string scope, Members members, std::span<const Transfer> transfers)
      : MovingOperation(std::move(scope), std::move(members)),
        transfers_(transfers.begin(), transfers.end()) {}

  void start(Transport& transport) override {
    for (const auto& [output, input] : transfers_) {
      const auto bytes = static_cast<int64_t>(input.nbytes());
      if (bytes == 0) continue;
      members_.for_each_peer([&](int64_t peer) {
        messages_.receive(transport, peer, data_of(output) + peer * bytes, bytes);
      });
      members_.for_each_peer(
          [&](int64_t peer) { messages_.send(transport, peer, data_of(input), bytes); });
    }
    for (const auto& [output, input] : transfers_) {  // while the messages travel
      char* own = data_of(output) + members_.rank * static_cast<int64_t>(input.nbytes());
      if (input.nbytes() > 0 && own != data_of(input))
        std::memcpy(own, data_of(input), input.nbytes());
    }
  }

 private:
  std::vector<Transfer> transfers_;
};

class AllToAll final : public MovingOperation {
 public:
  AllToAll(
      std::string scope,
      Members members,
      at::Tensor output,
      at::Tensor input,
      std::vector<int64_t> output_splits,
      std::vector<int64_t> input_splits)
      : MovingOperation(std::move(scope), std::move(members)),
        output_(std::move(output)),
        input_(std::move(input)),
        output_splits_(std::move(output_splits)),
        input_splits_(std::move(input_splits)) {}

  void start(Transport& transport) override {
    const auto at = [](const at::Tensor& tensor, const std::vector<int64_t>& splits, int64_t peer) {
      const int64_t before = std::accumulate(splits.begin(), splits.begin() + peer, int64_t{0});
      const auto size = static_cast<int64_t>(tensor.element_size());
      return std::pair(data_of(tensor) + before * size, splits[static_cast<size_t>(peer)] * size);
    };
    members_.for_each_peer([&](int64_t peer) {
      const auto [to, bytes] = at(output_, output_splits_, peer);
      messages_.receive(transport, peer, to, bytes);
    });
    members_.for_each_peer([&](int64_t peer) {
      const auto [from, bytes] = at(input_, input_splits_, peer);
      messages_.send(transport, peer, from, bytes);
    });
    char* to = at(output_, output_splits_, members_.rank).first;
    const auto [from, bytes] = at(input_, input_splits_, members_.rank);
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }

 private:
  at::Tensor output_;
  at::Tensor input_;
  std::vector<int64_t> output_splits_;
  std::vector<int64_t> input_splits_;
};

class PointToPoint final : public MovingOperation {
 public:
  PointToPoint(std::string scope, Members members, at::Tensor tensor, int64_t peer, bool sends)
      : MovingOperation(std::move(scope), std::move(members)),
        tensor_(std::move(tensor)),
        peer_(peer),
        sends_(sends) {}

  void start(Transport& transport) override {
    const auto bytes = static_cast<int64_t>(tensor_.nbytes());
    if (sends_) {
      messages_.send(transport, peer_, data_of(tensor_), bytes);
    } else {
      messages_.receive(transport, peer_, data_of(tensor_), bytes);
    }
  }

 private:
  at::Tensor tensor_;
  int64_t peer_;
  bool sends_;
};

/// A binomial tree: each rank receives from its parent, block by block, and passes each block on.
class Broadcast final : public MovingOperation {
 public:
  Broadcast(std::string scope, Members members, at::Tensor tensor, int64_t root)
      : MovingOperation(std::move(scope), std::move(members)),
        tensor_(std::move(tensor)),
        root_(root),
        incoming_(members_) {}

  void start(Transport& transport) override {
    const int64_t distance = (members_.rank - root_ + members_.size()) % members_.size();
    int64_t bit = 1;
    while (bit < members_.size() && (distance & bit) == 0) bit <<= 1;
    if (distance != 0) parent_ = (distance - bit + root_) % members_.size();
    for (bit >>= 1; bit > 0; bit >>= 1) {  // the farthest child first: its own tree is the deepest
      if (distance + bit < members_.size())
        children_.push_back((distance + bit + root_) % members_.size());
    }
    receive_block(transport);
  }

  bool advance(Transport& transport) override {
    const auto total = static_cast<int64_t>(tensor_.nbytes());
    while (at_ < total && incoming_.done()) {
      const int64_t length = std::min(kBlock, total - at_);
      for (const int64_t child : children_) {
        messages_.send(transport, child, data_of(tensor_) + at_, length);
      }
      at_ += length;
      receive_block(transport);
    }
    return at_ >= total && messages_.done();
  }

  std::vector<int64_t> waits_for() const override {
    auto ranks = MovingOperation::waits_for();
    incoming_.add_peers(ranks);
    return ranks;
  }

 private:
  void receive_block(Transport& transport) {
    const int64_t left = static_cast<int64_t>(tensor_.nbytes()) - at_;
    if (parent_ < 0 || left <= 0) return;
    incoming_.receive(transport, parent_, data_of(tensor_) + at_, std::min(kBlock, left));
  }

  static constexpr int64_t kBlock = int64_t{1} << 20;
  at::Tensor tensor_;
  int64_t root_;
  int64_t parent_ = -1;
  std::vector<int64_t> children_;
  int64_t at_ = 0;
  Messages incoming_;
};

/// Dissemination: in round k each rank hears from the one 2^k to its left.
class Barrier final : public MovingOperation {
 public:
  using MovingOperation::MovingOperation;

  void start(Transport& transport) override { round(transport); }

  bool advance(Transport& transport) override {
    while (messages_.done()) {
      if (distance_ >= members_.size()) return true;
      round(transport);
    }
    return false;
  }

 private:
  void round(Transport& transport) {
    const int64_t size = members_.size();
    if (distance_ >= size) return;
    messages_.receive(transport, (members_.rank - distance_ + size) % size, nullptr, 0);
    messages_.send(transport, (members_.rank + distance_) % size, nullptr, 0);
    distance_ *= 2;
  }

  int64_t distance_ = 1;
};

}  // namespace

OperationPtr make_all_gather(
    std::string scope, Members members, std::span<const Transfer> transfers) {
  return std::make_shared<AllGather>(std::move(scope), std::move(members), transfers);
}

OperationPtr make_all_to_all(
    std::string scope,
    Members members,
    at::Tensor output,
    at::Tensor input,
    std::vector<int64_t> output_splits,
    std::vector<int64_t> input_splits) {
  return std::make_shared<AllToAll>(
      std::move(scope), std::move(members), std::move(output), std::move(input),
      std::move(output_splits), std::move(input_splits));
}

OperationPtr make_send(std::string scope, Members members, at::Tensor tensor, int64_t peer) {
  return std::make_shared<PointToPoint>(
      std::move(scope), std::move(members), std::move(tensor), peer, true);
}

OperationPtr make_receive(std::string scope, Members members, at::Tensor tensor, int64_t peer) {
  return std::make_shared<PointToPoint>(
      std::move(scope), std::move(members), std::move(tensor), peer, false);
}

OperationPtr make_broadcast(std::string scope, Members members, at::Tensor tensor, int64_t root) {
  return std::make_shared<Broadcast>(std::move(scope), std::move(members), std::move(tensor), root);
}

OperationPtr make_barrier(std::string scope, Members members) {
  return std::make_shared<Barrier>(std::move(scope), std::move(members));
}

}  // namespace sherd
