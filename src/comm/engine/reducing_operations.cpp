// SPDX-License-Identifier: Apache-2.0
// The operations that reduce the ranks' values.
#include <cstring>
#include <utility>

#include "comm/engine/messages.h"
#include "comm/engine/operations.h"
#include "comm/engine/part_reduction.h"
#include "kernels/join.h"

namespace sherd {
namespace {

class ReducingOperation : public Operation {
 public:
  ReducingOperation(std::string scope, Members members)
      : Operation(std::move(scope)), members_(std::move(members)) {}

  std::vector<int64_t> waits_for() const override {
    std::vector<int64_t> ranks;
    for (const auto& part : parts_) part->add_peers(ranks);
    return ranks;
  }

 protected:
  /// Tensors take turns: each is reduced whole before the next begins.
  bool advance_parts(Transport& transport) {
    while (next_ < parts_.size() && parts_[next_]->advance(transport)) {
      if (++next_ < parts_.size()) parts_[next_]->start(transport);
    }
    return next_ >= parts_.size();
  }

  Members members_;
  std::vector<std::unique_ptr<PartReduction>> parts_;
  size_t next_ = 0;
};

class ReduceScatter final : public ReducingOperation {
 public:
  ReduceScatter(
      std::string scope, Members members, std::span<const Transfer> transfers, Reduction reduction)
      : ReducingOperation(std::move(scope), std::move(members)),
        transfers_(transfers.begin(), transfers.end()),
        reduction_(reduction) {}

  void start(Transport& transport) override {
    for (const auto& [output, input] : transfers_) {
      std::vector<PartReduction::Range> ranges;
      for (int64_t k = 0; k < members_.size(); ++k)
        ranges.push_back({k * output.numel(), output.numel()});
      parts_.push_back(std::make_unique<PartReduction>(
          members_, data_of(input), data_of(output), std::move(ranges), input.scalar_type(),
          reduction_));
    }
    if (!parts_.empty()) parts_.front()->start(transport);
  }

  bool advance(Transport& transport) override { return advance_parts(transport); }

 private:
  std::vector<Transfer> transfers_;
  Reduction reduction_;
};

/// Each rank reduces a part, then all gather the parts.
class AllReduce final : public ReducingOperation {
 public:
  AllReduce(
      std::string scope, Members members, std::span<const at::Tensor> tensors, Reduction reduction)
      : ReducingOperation(std::move(scope), std::move(members)),
        tensors_(tensors.begin(), tensors.end()),
        reduction_(reduction),
        gathering_(members_) {}

  void start(Transport& transport) override {
    for (const auto& tensor : tensors_) {
      const auto ranges = cut(tensor);
      char* data = data_of(tensor);
      const auto& own = ranges[static_cast<size_t>(members_.rank)];
      char* output = data + own.begin * static_cast<int64_t>(tensor.element_size());
      parts_.push_back(std::make_unique<PartReduction>(
          members_, data, output, ranges, tensor.scalar_type(), reduction_));
    }
    if (!parts_.empty()) parts_.front()->start(transport);
  }

  bool advance(Transport& transport) override {
    if (!advance_parts(transport)) return false;
    // Only now has every message left that read what the gather overwrites.
    if (!std::exchange(gathers_, true)) gather(transport);
    return gathering_.done();
  }

  std::vector<int64_t> waits_for() const override {
    auto ranks = ReducingOperation::waits_for();
    gathering_.add_peers(ranks);
    return ranks;
  }

 private:
  std::vector<PartReduction::Range> cut(const at::Tensor& tensor) const {
    const int64_t each = (tensor.numel() + members_.size() - 1) / members_.size();
    std::vector<PartReduction::Range> ranges;
    for (int64_t k = 0; k < members_.size(); ++k) {
      const int64_t begin = std::min(k * each, tensor.numel());
      ranges.push_back({begin, std::min(each, tensor.numel() - begin)});
    }
    return ranges;
  }

  void gather(Transport& transport) {
    for (const auto& tensor : tensors_) {
      const auto ranges = cut(tensor);
      const auto size = static_cast<int64_t>(tensor.element_size());
      const auto& own = ranges[static_cast<size_t>(members_.rank)];
      members_.for_each_peer([&](int64_t peer) {
        const auto& theirs = ranges[static_cast<size_t>(peer)];
        char* data = data_of(tensor);
        if (theirs.length > 0)
          gathering_.receive(transport, peer, data + theirs.begin * size, theirs.length * size);
        if (own.length > 0)
          gathering_.send(transport, peer, data + own.begin * size, own.length * size);
      });
    }
  }

  std::vector<at::Tensor> tensors_;
  Reduction reduction_;
  bool gathers_ = false;
  Messages gathering_;
};

/// For small tensors: each rank sends everything to all others and reduces it all, in one round.
class SmallAllReduce final : public ReducingOperation {
 public:
  SmallAllReduce(
      std::string scope, Members members, std::span<const at::Tensor> tensors, Reduction reduction)
      : ReducingOperation(std::move(scope), std::move(members)),
        tensors_(tensors.begin(), tensors.end()),
        reduction_(reduction),
        messages_(members_) {}

  void start(Transport& transport) override {
    for (const auto& tensor : tensors_) bytes_ += room(tensor);
    staging_.resize(static_cast<size_t>(bytes_ * members_.size()));
    char* own = staged(members_.rank);
    for (const auto& tensor : tensors_) {
      if (tensor.nbytes() > 0) std::memcpy(own, data_of(tensor), tensor.nbytes());
      own += room(tensor);
    }
    members_.for_each_peer([&](int64_t peer) {
      messages_.receive(transport, peer, staged(peer), bytes_);
      messages_.send(transport, peer, staged(members_.rank), bytes_);
    });
  }

  bool advance(Transport&) override {
    if (!messages_.done()) return false;
    int64_t at = 0;
    for (const auto& tensor : tensors_) {
      std::vector<const void*> sources;
      for (int64_t rank = 0; rank < members_.size(); ++rank) sources.push_back(staged(rank) + at);
      join(data_of(tensor), sources, tensor.numel(), tensor.scalar_type(), reduction_);
      at += room(tensor);
    }
    return true;
  }

  std::vector<int64_t> waits_for() const override {
    std::vector<int64_t> ranks;
    messages_.add_peers(ranks);
    return ranks;
  }

 private:
  /// A tensor's bytes in the message, rounded so that the next one is aligned for any dtype.
  static int64_t room(const at::Tensor& tensor) {
    return (static_cast<int64_t>(tensor.nbytes()) + 15) / 16 * 16;
  }
  char* staged(int64_t rank) { return staging_.data() + rank * bytes_; }

  std::vector<at::Tensor> tensors_;
  Reduction reduction_;
  int64_t bytes_ = 0;
  std::vector<char> staging_;
  Messages messages_;
};

}  // namespace

OperationPtr make_reduce_scatter(
    std::string scope, Members members, std::span<const Transfer> transfers, Reduction reduction) {
  return std::make_shared<ReduceScatter>(
      std::move(scope), std::move(members), transfers, reduction);
}

OperationPtr make_all_reduce(
    std::string scope, Members members, std::span<const at::Tensor> tensors, Reduction reduction) {
  constexpr int64_t kSmall = 32 << 10;  // bytes to each peer; beyond, cutting pays
  int64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  if (bytes * members.size() <= kSmall) {
    return std::make_shared<SmallAllReduce>(
        std::move(scope), std::move(members), tensors, reduction);
  }
  return std::make_shared<AllReduce>(std::move(scope), std::move(members), tensors, reduction);
}

}  // namespace sherd
