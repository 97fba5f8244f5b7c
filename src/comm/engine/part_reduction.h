// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "comm/engine/messages.h"
#include "comm/engine/operations.h"

namespace sherd {

// Note [How a reduction travels]
//
// Each rank reduces one part. It receives that part from every peer, block by block, and reduces a
// block when those of all peers have arrived: in the order of the ranks, whatever order they
// arrived in. So the bits of an element depend on the ranks' values alone: not on timing, nor on
// which rank reduces it, nor on how the buffer is cut. An all-reduce therefore gives the same bits
// as a reduce-scatter. Two blocks are under way, so that one travels while the other is reduced.
// Blocks are sized so that those of all peers fit the cache together.

/// The reduction of this rank's part of one tensor. Used by the engine's thread alone; nothing
/// blocks.
class PartReduction {
 public:
  /// A range of elements.
  struct Range {
    int64_t begin = 0;
    int64_t length = 0;
  };

  /// Rank k reduces `parts[k]`. `input` has all parts, `output` room for this rank's; it may be
  /// that part of `input`. Both must stay valid until advance() has returned true.
  PartReduction(
      const Members& members,
      char* input,
      char* output,
      std::vector<Range> parts,
      c10::ScalarType dtype,
      Reduction reduction);

  /// Posts the first messages.
  void start(Transport& transport);
  /// Reduces the blocks that have arrived and posts further messages. Returns true when this rank's
  /// part is reduced and all messages to the peers have been sent.
  bool advance(Transport& transport);
  /// Adds the world ranks of the messages under way to `ranks`.
  void add_peers(std::vector<int64_t>& ranks) const;

 private:
  const Range& own() const { return parts_[static_cast<size_t>(members_.rank)]; }
  int64_t blocks(const Range& part) const { return (part.length + block_ - 1) / block_; }
  int64_t staged_block() const { return std::min(block_, own().length); }
  static size_t slot(int64_t block) { return static_cast<size_t>(block % 2); }
  Range block_of(const Range& part, int64_t block) const {
    return {part.begin + block * block_, std::min(block_, part.length - block * block_)};
  }
  char* staged(int64_t block, int64_t peer);
  void receive_block(Transport& transport, int64_t block);
  void send_blocks(Transport& transport);
  void reduce_block(int64_t block);

  const Members& members_;
  char* input_;
  char* output_;
  std::vector<Range> parts_;
  c10::ScalarType dtype_;
  Reduction reduction_;
  int64_t element_;          // bytes
  int64_t block_ = 1;        // elements
  int64_t most_blocks_ = 0;  // of any part
  int64_t reduced_ = 0;      // blocks of this rank's part that are reduced
  int64_t sent_ = 0;         // blocks of every peer's part that were sent
  std::vector<char> staging_;
  std::array<Messages, 2> incoming_;
  Messages outgoing_;
};

}  // namespace sherd
