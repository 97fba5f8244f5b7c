// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sherd/export.h"

namespace sherd {

/// The indices [begin, end) along a dim.
struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;
  friend bool operator==(const IndexRange&, const IndexRange&) = default;
};

/// The part of a whole parameter that one rank's parameter is: ranges of indices along one dim, one
/// after another, with everything along the other dims. The whole has the parameter's name; other
/// ranks have its other parts. (Elsewhere the whole is a global tensor, the part a local one.)
///
///   // rank r of 4 with tensor parallelism: rows of queries [32, D], keys [8, D] and values [8, D]
///   Cut qkv{{48, D}, 0, {{8 * r, 8 * r + 8}, {32 + 2 * r, 34 + 2 * r}, {40 + 2 * r, 42 + 2 * r}}};
///   Cut output{{D, 32}, 1, {{8 * r, 8 * r + 8}}};  // columns of the projection after attention
///   Cut experts{{64, F, D}, 0, {{16 * r, 16 * r + 16}}};
struct Cut {
  std::vector<int64_t> shape{};      ///< shape of the whole parameter
  int64_t dim = 0;                   ///< dim that is cut
  std::vector<IndexRange> ranges{};  ///< ascending, disjoint and not empty
  friend bool operator==(const Cut&, const Cut&) = default;
};

/// Throws std::invalid_argument, naming the parameter, unless the cut is valid: a shape without
/// negative dims and with at most 2^62 elements, a dim of it, and at least one range; all ranges
/// within that dim, ascending, disjoint and not empty.
SHERD_API void check_cut(const Cut& cut, const std::string& parameter);
/// Returns the shape of the part.
SHERD_API std::vector<int64_t> part_shape(const Cut& cut);
/// Returns the number of elements of the part.
SHERD_API int64_t part_elements(const Cut& cut);
/// Returns the cut as text, such as "rows 0..8, 32..34 of [48, 16]"; dims but the first two are
/// called "indices … along dim 2".
SHERD_API std::string to_text(const Cut& cut);

/// Elements that follow one another in a part and in its whole.
struct CutRun {
  int64_t in_part = 0;   ///< first element, counted in the part
  int64_t in_whole = 0;  ///< the same element, counted in the whole
  int64_t length = 0;    ///< number of elements
  friend bool operator==(const CutRun&, const CutRun&) = default;
};

/// Calls `visit` for the `count` elements of the part from `begin` on, in order, in the longest
/// runs that there are. Both must lie within the part.
SHERD_API void each_run(
    const Cut& cut, int64_t begin, int64_t count, const std::function<void(const CutRun&)>& visit);

}  // namespace sherd
