// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/slices.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace sherd {
namespace {

int64_t product(const std::vector<int64_t>& dims, size_t from = 0) {
  int64_t result = 1;
  for (size_t i = from; i < dims.size(); ++i) result *= dims[i];
  return result;
}

std::vector<int64_t> extent(const TensorSlice& slice) {
  if (slice.ranges.empty()) return slice.shape;
  std::vector<int64_t> result;
  for (const auto& [from, to] : slice.ranges) result.push_back(to - from);
  return result;
}

/// How many dims, counted from the last, are whole: elements over them and the dim before lie one
/// after another.
size_t first_whole_dim(const TensorSlice& slice) {
  size_t dim = slice.ranges.size();
  while (dim > 0 && slice.ranges[dim - 1] == std::pair<int64_t, int64_t>(0, slice.shape[dim - 1])) {
    --dim;
  }
  return dim;
}

/// Where an element of a slice, counted in it, lies in its tensor.
int64_t place_in_tensor(const TensorSlice& slice, int64_t element) {
  if (slice.ranges.empty()) return element;
  int64_t place = 0;
  int64_t stride = 1;
  for (size_t dim = slice.shape.size(); dim-- > 0;) {
    const auto [from, to] = slice.ranges[dim];
    place += (from + element % (to - from)) * stride;
    element /= to - from;
    stride *= slice.shape[dim];
  }
  return place;
}

}  // namespace

int64_t elements_of(const TensorSlice& slice) {
  return product(extent(slice));
}

std::vector<TensorSlice> checked_slices(
    const SlicesOf& slices_of, const std::string& name, at::IntArrayRef shape) {
  if (!slices_of) return {{name, shape.vec(), {}}};
  auto slices = slices_of(name, shape);
  int64_t elements = 0;
  for (const auto& slice : slices) {
    bool fine = slice.ranges.empty() || slice.ranges.size() == slice.shape.size();
    for (size_t dim = 0; fine && dim < slice.ranges.size(); ++dim) {
      const auto [from, to] = slice.ranges[dim];
      fine = 0 <= from && from <= to && to <= slice.shape[dim];
    }
    TORCH_CHECK_VALUE(
        fine, "[checkpoint] a slice of parameter '", name, "' does not lie in its tensor '",
        slice.tensor, "'");
    elements += product(extent(slice));
  }
  TORCH_CHECK_VALUE(
      elements == c10::multiply_integers(shape), "[checkpoint] parameter '", name, "' has ",
      c10::multiply_integers(shape), " elements, but its slices have ", elements);
  return slices;
}

void each_run(
    const std::vector<TensorSlice>& slices,
    int64_t begin,
    int64_t end,
    const std::function<void(const Run&)>& visit) {
  int64_t first = 0;  // of the slice, in the parameter
  for (const auto& slice : slices) {
    const auto dims = extent(slice);
    const int64_t size = product(dims);
    // A row of the last dim that is cut, with all dims after it.
    const size_t whole = first_whole_dim(slice);
    const int64_t row = std::max<int64_t>(1, product(dims, whole == 0 ? 0 : whole - 1));
    const int64_t stop = std::min(end, first + size);
    for (int64_t at = std::max(begin, first); at < stop;) {
      const int64_t in_slice = at - first;
      const int64_t length = std::min(stop - at, row - in_slice % row);
      visit({&slice.tensor, place_in_tensor(slice, in_slice), at, length});
      at += length;
    }
    first += size;
  }
}

}  // namespace sherd
