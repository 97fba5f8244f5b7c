// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace sherd {

/// While a buffer is needed: a range of instructions of one section, both ends included.
struct Lifetime {
  int32_t buffer = 0;
  int32_t section = 0;
  int32_t begin = 0;
  int32_t end = 0;
};

struct ArenaPlan {
  std::vector<int64_t> offsets;  ///< by buffer; kNone for one without a lifetime or without bytes
  int64_t bytes = 0;             ///< of the arena
  int64_t bound = 0;  ///< most bytes live at any instant of any section: no plan takes less
};

/// Two pinned offsets that can't both be.
struct PinnedConflict : std::invalid_argument {
  PinnedConflict(const std::string& words, int32_t a, int32_t b)
      : std::invalid_argument(words), one(a), other(b) {}
  int32_t one;
  int32_t other;
};

/// One offset per buffer, the same in all sections, so that no two buffers whose lifetimes overlap
/// share a byte. The fewest bytes possible for up to eight buffers, few for more (a note in
/// arena.cpp). A pure function of its arguments: all ranks compute it and agree.
///
/// `pinned` are offsets that buffers already have (kNone: free to choose); empty: none. Throws
/// a PinnedConflict with both buffers' numbers if two pinned ones whose lifetimes overlap share
/// a byte. A buffer without a lifetime pins nothing.
ArenaPlan plan_arena(
    const std::vector<int64_t>& bytes,
    const std::vector<Lifetime>& lifetimes,
    const std::vector<int64_t>& pinned = {});

}  // namespace sherd
