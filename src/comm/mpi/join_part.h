// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "comm/mpi/messages.h"
#include "comm/mpi/operations.h"

namespace sherd {

// Note [How a reduction travels]
//
// Each rank joins one part. It receives that part from every peer block by block, and joins a block
// when all peers' have come, in the order of the ranks, whatever order they came in. So an
// element's bits depend on the ranks' values alone: not on timing, nor on which rank joins it, nor
// on how the buffer is cut. An all-reduce therefore gives the same bits as a reduce-scatter. Two
// blocks are under way, so that one travels while the other is joined. Blocks are sized so that all
// peers' fit the cache together.

/// Joins this rank's part of one tensor.
class JoinPart {
 public:
  struct Range {
    int64_t begin = 0;  // elements
    int64_t length = 0;
  };

  /// `parts[k]` is what rank k joins; `input` holds all of them, `output` takes this rank's.
  JoinPart(
      const Members& members,
      char* input,
      char* output,
      std::vector<Range> parts,
      c10::ScalarType dtype,
      Reduction reduction);

  void start(Transport& transport);
  /// True when the part is joined and everything owed to the peers has left.
  bool advance(Transport& transport);
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
  void join_block(int64_t block);

  const Members& members_;
  char* input_;
  char* output_;
  std::vector<Range> parts_;
  c10::ScalarType dtype_;
  Reduction reduction_;
  int64_t element_;          // bytes
  int64_t block_ = 1;        // elements
  int64_t most_blocks_ = 0;  // of any part
  int64_t joined_ = 0;       // blocks of this rank's part
  int64_t sent_ = 0;         // blocks of every peer's part
  std::vector<char> staging_;
  std::array<Messages, 2> incoming_;
  Messages outgoing_;
};

}  // namespace sherd
