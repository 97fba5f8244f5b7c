// SPDX-License-Identifier: Apache-2.0
#include "sherd/plan/cut.h"

#include <algorithm>
#include <span>
#include <stdexcept>

#include "plan/text.h"

namespace sherd {
namespace {

constexpr int64_t kMostElementsOfWhole = int64_t{1} << 62;

int64_t elements_of(std::span<const int64_t> dims) {
  int64_t result = 1;
  for (const int64_t dim : dims) result *= dim;
  return result;
}

/// The size of the part along the dim that is cut.
int64_t part_size(const Cut& cut) {
  int64_t size = 0;
  for (const auto& range : cut.ranges) size += range.end - range.begin;
  return size;
}

/// The elements of one index along the dim that is cut, with all dims after it.
int64_t row_elements(const Cut& cut) {
  return elements_of(std::span(cut.shape).subspan(static_cast<size_t>(cut.dim) + 1));
}

std::string shape_text(const Cut& cut) {
  std::string result;
  for (const int64_t dim : cut.shape) result += text(result.empty() ? "[" : ", ", dim);
  return result.empty() ? "[]" : result + "]";
}

/// Returns what is wrong with the shape; nothing if it is fine.
std::string fault_of_shape(const Cut& cut) {
  int64_t elements = 1;
  for (const int64_t size : cut.shape) {
    if (size < 0) return text("has the negative dim ", size);
    if (__builtin_mul_overflow(elements, std::max<int64_t>(size, 1), &elements) ||
        elements > kMostElementsOfWhole) {
      return "has over 2^62 elements";
    }
  }
  if (cut.dim < 0 || cut.dim >= std::ssize(cut.shape)) return text("has no dim ", cut.dim);
  return "";
}

}  // namespace

void check_cut(const Cut& cut, const std::string& parameter) {
  const auto require = [&](bool condition, const auto&... words) {
    if (condition) return;
    throw std::invalid_argument(text("[plan.cut] parameter '", parameter, "': ", words...));
  };
  const auto fault = fault_of_shape(cut);
  require(fault.empty(), "the whole ", shape_text(cut), " ", fault);
  require(
      !cut.ranges.empty(), "its cut of ", shape_text(cut),
      " has no ranges: give the indices along dim ", cut.dim, " that this rank has");
  const int64_t size = cut.shape[static_cast<size_t>(cut.dim)];
  int64_t before = 0;
  for (const auto& [begin, end] : cut.ranges) {
    require(
        begin < end, "the range ", begin, "..", end, " of its cut is empty: leave it out, or give ",
        "it an end above its begin");
    require(
        begin >= 0 && end <= size, "the range ", begin, "..", end,
        " of its cut does not lie within dim ", cut.dim, " of ", shape_text(cut), ", which has ",
        size, " indices");
    require(
        begin >= before, "the range ", begin, "..", end, " of its cut begins before ", before,
        ", where the one before it ends: ranges must be ascending and disjoint");
    before = end;
  }
}

std::vector<int64_t> part_shape(const Cut& cut) {
  auto shape = cut.shape;
  shape[static_cast<size_t>(cut.dim)] = part_size(cut);
  return shape;
}

int64_t part_elements(const Cut& cut) {
  return elements_of(part_shape(cut));
}

std::string to_text(const Cut& cut) {
  std::string result = cut.dim == 0 ? "rows" : cut.dim == 1 ? "columns" : "indices";
  const char* separator = " ";
  for (const auto& [begin, end] : cut.ranges) {
    result += text(separator, begin, "..", end);
    separator = ", ";
  }
  if (cut.dim > 1) result += text(" along dim ", cut.dim);
  return text(result, " of ", shape_text(cut));
}

void each_run(
    const Cut& cut, int64_t begin, int64_t count, const std::function<void(const CutRun&)>& visit) {
  const int64_t row = row_elements(cut);
  const int64_t in_part = part_size(cut) * row;  // elements of the part for each index before dim
  const int64_t in_whole = cut.shape[static_cast<size_t>(cut.dim)] * row;
  const int64_t end = begin + count;
  CutRun run{begin, 0, 0};
  const auto add = [&](int64_t at, int64_t place, int64_t length) {
    if (run.length > 0 && run.in_whole + run.length == place) {
      run.length += length;
      return;
    }
    if (run.length > 0) visit(run);
    run = {at, place, length};
  };
  for (int64_t at = begin; at < end;) {
    const int64_t outer = at / in_part;
    int64_t first = outer * in_part;  // of the range's elements, in the part
    for (const auto& range : cut.ranges) {
      const int64_t next = first + (range.end - range.begin) * row;
      if (at < std::min(next, end)) {
        const int64_t length = std::min(next, end) - at;
        add(at, outer * in_whole + range.begin * row + at - first, length);
        at += length;
      }
      first = next;
    }
  }
  if (run.length > 0) visit(run);
}

}  // namespace sherd
