// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/part_reduction.h"

#include <algorithm>
#include <utility>

#include "kernels/join.h"

namespace sherd {
namespace {

constexpr int64_t kStaging = 4 << 20;  // bytes for all blocks under way
constexpr int64_t kSmallest = 16 << 10;
constexpr int64_t kLargest = 512 << 10;
constexpr int64_t kAhead = 4;  // blocks sent before their turn

}  // namespace

PartReduction::PartReduction(
    const Members& members,
    char* input,
    char* output,
    std::vector<Range> parts,
    c10::ScalarType dtype,
    Reduction reduction)
    : members_(members),
      input_(input),
      output_(output),
      parts_(std::move(parts)),
      dtype_(dtype),
      reduction_(reduction),
      element_(static_cast<int64_t>(c10::elementSize(dtype))),
      incoming_{Messages(members), Messages(members)},
      outgoing_(members) {
  const int64_t peers = std::max<int64_t>(members.size() - 1, 1);
  block_ = std::clamp(kStaging / (2 * peers), kSmallest, kLargest) / element_;
  for (const auto& part : parts_) most_blocks_ = std::max(most_blocks_, blocks(part));
}

void PartReduction::start(Transport& transport) {
  const int64_t peers = members_.size() - 1;
  if (own().length > 0) staging_.resize(static_cast<size_t>(2 * peers * staged_block() * element_));
  for (int64_t block = 0; block < 2; ++block) receive_block(transport, block);
  send_blocks(transport);
}

bool PartReduction::advance(Transport& transport) {
  while (reduced_ < blocks(own()) && incoming_[slot(reduced_)].done()) {
    reduce_block(reduced_);
    ++reduced_;
    receive_block(transport, reduced_ + 1);
  }
  send_blocks(transport);
  return outgoing_.done() && sent_ >= most_blocks_ && reduced_ >= blocks(own());
}

void PartReduction::add_peers(std::vector<int64_t>& ranks) const {
  for (const auto& messages : incoming_) messages.add_peers(ranks);
  outgoing_.add_peers(ranks);
}

char* PartReduction::staged(int64_t block, int64_t peer) {
  const int64_t index = static_cast<int64_t>(slot(block)) * (members_.size() - 1) +
                        (peer < members_.rank ? peer : peer - 1);
  return staging_.data() + index * staged_block() * element_;
}

void PartReduction::receive_block(Transport& transport, int64_t block) {
  if (block >= blocks(own())) return;
  const int64_t bytes = block_of(own(), block).length * element_;
  members_.for_each_peer([&](int64_t peer) {
    incoming_[slot(block)].receive(transport, peer, staged(block, peer), bytes);
  });
}

/// Sends a few blocks ahead of what is reduced here: the peers are about as far. A rank whose own
/// part is done, or shorter than theirs, goes on as its messages leave.
void PartReduction::send_blocks(Transport& transport) {
  const bool idle = reduced_ >= blocks(own());
  const int64_t limit = idle ? (outgoing_.done() ? sent_ + kAhead : sent_) : reduced_ + kAhead;
  for (; sent_ < std::min(most_blocks_, limit); ++sent_) {
    members_.for_each_peer([&](int64_t peer) {
      const auto& part = parts_[static_cast<size_t>(peer)];
      if (sent_ >= blocks(part)) return;
      const auto range = block_of(part, sent_);
      outgoing_.send(transport, peer, input_ + range.begin * element_, range.length * element_);
    });
  }
}

void PartReduction::reduce_block(int64_t block) {
  const auto range = block_of(own(), block);
  std::vector<const void*> sources;
  for (int64_t rank = 0; rank < members_.size(); ++rank) {
    sources.push_back(
        rank == members_.rank ? input_ + range.begin * element_ : staged(block, rank));
  }
  join(output_ + (range.begin - own().begin) * element_, sources, range.length, dtype_, reduction_);
}

}  // namespace sherd
