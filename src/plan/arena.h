// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace sherd {

/// The range of instructions of one section, both ends included, in which a buffer is needed.
struct Lifetime {
  int32_t buffer = 0;
  int32_t section = 0;
  int32_t begin = 0;
  int32_t end = 0;
};

/// The result of plan_arena.
struct ArenaPlan {
  std::vector<int64_t> offsets;  ///< by buffer; kNone for one without a lifetime or without bytes
  int64_t bytes = 0;             ///< of the arena
  int64_t bound = 0;  ///< most bytes in use at once in any section: no arena can be smaller
};

/// The error for two buffers that are needed at the same time and whose pinned offsets share bytes.
struct PinnedConflict : std::invalid_argument {
  PinnedConflict(const std::string& words, int32_t a, int32_t b)
      : std::invalid_argument(words), one(a), other(b) {}
  int32_t one;
  int32_t other;
};

/// Chooses one offset per buffer, the same in all sections, so that no two buffers whose lifetimes
/// overlap share a byte. For up to eight buffers the arena is the smallest possible, for more it is
/// close to that (Note [How the arena is packed] in arena.cpp). A pure function of its arguments,
/// so all ranks get the same result.
///
/// `pinned` are offsets that buffers already have (kNone: free to choose); empty: none. Throws
/// a PinnedConflict with both buffers' numbers if two pinned ones whose lifetimes overlap share
/// a byte. The
/// pinned offset of a buffer without a lifetime is ignored.
ArenaPlan plan_arena(
    const std::vector<int64_t>& bytes,
    const std::vector<Lifetime>& lifetimes,
    const std::vector<int64_t>& pinned = {});

}  // namespace sherd
