// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "sherd/plan/layout.h"

namespace sherd::testing {

/// Checks everything that a Layout promises, from its public queries alone. Returns the first
/// broken promise in words, or nothing. Serves the property tests and the fuzz target.
class LayoutCheck {
 public:
  explicit LayoutCheck(const Layout& layout) : layout_(layout) {}

  std::string run(uint64_t seed) {
    seed_ = seed;
    for (const auto& segment : layout_.segments()) check_segment(segment);
    if (segment_parameters_ != std::ssize(layout_.parameters())) fail("a parameter has no segment");
    check_sizes();
    for (const int64_t count : part_counts()) check_parts(count);
    return broken_;
  }

 private:
  template <class... Args>
  void fail(const Args&... args) {
    if (!broken_.empty()) return;
    std::ostringstream out;
    (out << ... << args);
    broken_ = out.str() + "\n" + layout_.to_text();
  }

  const ParameterSpec& spec(int64_t parameter) const {
    return layout_.parameters()[static_cast<size_t>(parameter)];
  }
  int64_t granule(int64_t parameter) const {
    const int64_t numel = layout_.numel(parameter);
    if (numel <= 1) return 1;
    return std::min(spec(parameter).granule.elements(spec(parameter).shape), aligned(numel));
  }
  int64_t aligned(int64_t size) const {
    return (size + layout_.alignment() - 1) / layout_.alignment() * layout_.alignment();
  }

  void check_segment(const Segment& segment) {
    const int64_t shard = segment.shard_size;
    if (shard % layout_.alignment() != 0) fail("shard size ", shard, " is not aligned");
    int64_t end = segment.offset;
    int64_t total = 0;
    int64_t largest_granule = 1;
    int64_t whole = 0;
    for (const int64_t parameter : segment.parameters) {
      ++segment_parameters_;
      const int64_t offset = layout_.offset(parameter);
      const int64_t numel = layout_.numel(parameter);
      if (offset % layout_.alignment() != 0) fail("'", spec(parameter).name, "' is not aligned");
      if (offset < end) fail("'", spec(parameter).name, "' overlaps the one before it");
      end = offset + numel;
      if (end > segment.offset + shard * layout_.shards()) {
        fail("'", spec(parameter).name, "' passes the segment's end");
      }
      total += aligned(numel);
      largest_granule = std::max(largest_granule, granule(parameter));
      whole += spec(parameter).granule.is_whole() ? 1 : 0;
      check_cuts(segment, parameter);
    }
    if (whole != 0) {
      if (whole != std::ssize(segment.parameters))
        fail("whole tensors share a segment with others");
      return;  // their bound is checked against the best dealing, in the tests
    }
    const int64_t bound = layout_.shards() * std::lcm(largest_granule, layout_.alignment());
    if (shard * layout_.shards() - total > bound) {
      fail("padding ", shard * layout_.shards() - total, " passes the bound ", bound);
    }
  }

  void check_cuts(const Segment& segment, int64_t parameter) {
    const int64_t numel = layout_.numel(parameter);
    if (numel == 0) return;
    const int64_t begin = layout_.offset(parameter) - segment.offset;
    const int64_t first = (begin / segment.shard_size + 1) * segment.shard_size - begin;
    if (first >= numel) return;  // no cut inside
    if (first % granule(parameter) != 0)
      fail("'", spec(parameter).name, "' is cut inside a granule");
    if (first + segment.shard_size < numel && segment.shard_size % granule(parameter) != 0) {
      fail("'", spec(parameter).name, "' is cut a second time inside a granule");
    }
  }

  void check_sizes() {
    int64_t shard = 0;
    int64_t used = 0;
    for (const auto& segment : layout_.segments()) {
      if (segment.offset != shard * layout_.shards()) fail("segments don't follow one another");
      shard += segment.shard_size;
    }
    for (int64_t i = 0; i < std::ssize(layout_.parameters()); ++i) used += layout_.numel(i);
    if (layout_.full_size() != shard * layout_.shards()) fail("full size is not the segments' sum");
    if (layout_.padding() != layout_.full_size() - used) fail("padding is miscounted");
  }

  /// 1, the smallest divisor beyond it, and all shards.
  std::array<int64_t, 3> part_counts() const {
    int64_t divisor = 2;
    while (divisor * divisor <= layout_.shards() && layout_.shards() % divisor != 0) ++divisor;
    return {1, layout_.shards() % divisor == 0 ? divisor : 1, layout_.shards()};
  }

  uint64_t random() {  // splitmix64
    uint64_t z = (seed_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  void check_parts(int64_t count) {
    const bool all = count <= 32;
    std::vector<int64_t> covered(layout_.parameters().size(), 0);
    for (int64_t i = 0; i < (all ? count : 8); ++i) {
      const int64_t index = all ? i : static_cast<int64_t>(random() % static_cast<uint64_t>(count));
      check_part({index, count}, covered);
    }
    for (size_t i = 0; all && i < covered.size(); ++i) {
      if (covered[i] != layout_.numel(static_cast<int64_t>(i))) {
        fail(
            "the ", count, " parts hold ", covered[i], " elements of '",
            layout_.parameters()[i].name, "'");
      }
    }
  }

  void check_part(Part part, std::vector<int64_t>& covered) {
    int64_t end = 0;
    for (const auto& piece : layout_.held_by(part)) {
      if (piece.length <= 0) fail("an empty piece");
      if (piece.offset < end) fail("pieces of part ", part.index, " overlap");
      end = piece.offset + piece.length;
      covered[static_cast<size_t>(piece.parameter)] += piece.length;
      if (layout_.held_by(part, piece.parameter) != piece) fail("the two piece queries differ");
      const auto inside = static_cast<int64_t>(random() % static_cast<uint64_t>(piece.length));
      for (const int64_t at : {int64_t{0}, inside, piece.length - 1}) {
        const auto place = layout_.locate(piece.parameter, piece.begin + at, part.count);
        if (place.index != part.index || place.offset != piece.offset + at) {
          fail("locate and held_by differ for '", spec(piece.parameter).name, "'");
        }
      }
    }
    if (end > layout_.part_size(part.count)) fail("part ", part.index, " holds more than its size");
  }

  const Layout& layout_;
  uint64_t seed_ = 0;
  int64_t segment_parameters_ = 0;
  std::string broken_;
};

}  // namespace sherd::testing
