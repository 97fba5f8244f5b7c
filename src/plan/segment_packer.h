// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

namespace sherd {

// Note [How a segment is packed]
//
// A segment has `shards` equal shards of S elements, so its cuts lie at S, 2S, …; S and every
// parameter's offset are multiples of the alignment A. A cut inside a parameter must fall on a
// multiple of its granule g. As cut and offset are multiples of A, their distance is then one of
// lcm(g, A).
//
// Parameters are placed one after another. One that would be cut off its granule is moved up until
// the cut fits, by less than lcm(g, A); one that is cut twice or more needs S to be a multiple of
// g. Only a parameter that lies across a cut is ever moved, so all moves together cost less than
// (shards − 1) × lcm(g, A). S is searched upwards from the least that holds the aligned parameters.
//
// Promise: S × shards exceeds the sum of the aligned sizes by at most shards × lcm(g, A), g being
// the largest granule. One parameter alone always keeps it (S is the next multiple of lcm(g, A));
// several may not, when their ends leave rests that no order fills. Then they are dealt to two
// segments.
//
// Parameters share a segment only if their granules divide one another, and if that costs no
// padding. Those with the granule "whole" are never cut; they are dealt to the least filled shard,
// largest first, which keeps the fullest shard within 4/3 of the best possible.

/// A parameter to be packed.
struct PackItem {
  int64_t parameter = 0;
  int64_t numel = 0;
  int64_t granule = 1;
};

/// A packed segment: shards of `shard_size` elements, and the items' offsets in the segment.
struct PackedSegment {
  int64_t shard_size = 0;
  std::vector<PackItem> items;
  std::vector<int64_t> offsets;
};

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Packs items whose granules divide one another (largest first) into one segment within the
/// promised bound. Returns nothing if that is impossible.
std::optional<PackedSegment> pack_together(
    std::vector<PackItem> items, int64_t shards, int64_t alignment);

/// Packs items of any granules into as few segments as the padding allows.
std::vector<PackedSegment> pack_cut(std::vector<PackItem> items, int64_t shards, int64_t alignment);

/// Packs items that are never cut into one segment.
PackedSegment pack_whole(std::vector<PackItem> items, int64_t shards, int64_t alignment);

}  // namespace sherd
