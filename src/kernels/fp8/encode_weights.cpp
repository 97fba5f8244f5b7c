// SPDX-License-Identifier: Apache-2.0
#include "kernels/fp8/encode_weights.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cast_types.h"
#include "kernels/fp8/encode_loops.h"
#include "kernels/fp8/fp8_math.h"

namespace sherd {
namespace {

constexpr int64_t kAtOnce = 1024;  // elements that are widened in the first-level cache

/// Calls body(values, begin, count) with the elements in fp32, some at a time.
template <class Body>
void each_wide(const void* source, c10::ScalarType dtype, int64_t count, Body body) {
  if (dtype == c10::kFloat) return body(static_cast<const float*>(source), int64_t{0}, count);
  std::array<float, kAtOnce> wide;
  with_float_type(dtype, [&](auto type) {
    const auto* values = static_cast<const decltype(type)*>(source);
    for (int64_t begin = 0; begin < count; begin += kAtOnce) {
      const int64_t some = std::min(kAtOnce, count - begin);
      for (int64_t i = 0; i < some; ++i) {
        wide[static_cast<size_t>(i)] = static_cast<float>(values[begin + i]);
      }
      body(static_cast<const float*>(wide.data()), begin, some);
    }
  });
}

/// Encodes `rows` × `columns` elements, whose rows are `stride` apart, with one scale.
float encode_block(
    const float* source, uint8_t* values, int64_t rows, int64_t columns, int64_t stride) {
  uint32_t amax = 0;
  for (int64_t row = 0; row < rows; ++row) {
    amax = std::max(amax, fp8::largest_magnitude(source + row * stride, columns));
  }
  const float scale = fp8::scale_of(amax);
  for (int64_t row = 0; row < rows; ++row) {
    fp8::encode_all(source + row * stride, fp8::inverse_of(scale), values + row * stride, columns);
  }
  return scale;
}

void encode_rows_of_weight(const WeightRows& one, c10::ScalarType dtype, Scaling scaling) {
  const int64_t down = scaling == Scaling::block       ? kFp8Tile
                       : scaling == Scaling::mx_column ? kMxBlock
                                                       : 1;
  const int64_t across = scaling == Scaling::block    ? kFp8Tile
                         : scaling == Scaling::mx_row ? kMxBlock
                                                      : 1;
  const int64_t blocks = one.columns / across;
  std::vector<float> wide(static_cast<size_t>(down * one.columns));
  const auto size = static_cast<int64_t>(c10::elementSize(dtype));
  for (int64_t row = 0; row < one.rows; row += down) {
    const auto* source = static_cast<const char*>(one.source) + row * one.columns * size;
    each_wide(source, dtype, down * one.columns, [&](const float* some, int64_t at, int64_t count) {
      std::copy(some, some + count, wide.begin() + at);
    });
    auto* values = static_cast<uint8_t*>(one.values) + row * one.columns;
    for (int64_t block = 0; block < blocks; ++block) {
      const float scale = encode_block(
          wide.data() + block * across, values + block * across, down, across, one.columns);
      const int64_t place = row / down * blocks + block;
      if (scaling == Scaling::block) {
        static_cast<float*>(one.scales)[place] = scale;
      } else {
        static_cast<uint8_t*>(one.scales)[place] = fp8::exponent_of(scale);
      }
    }
  }
}

template <class T>
void transpose_on_cpu(const Transposition& one) {
  const auto* source = static_cast<const T*>(one.source);
  auto* target = static_cast<T*>(one.target);
  constexpr int64_t kTile = 64;  // both sides of a tile stay in the first-level cache
  for (int64_t top = 0; top < one.rows; top += kTile) {
    for (int64_t left = 0; left < one.columns; left += kTile) {
      const int64_t bottom = std::min(top + kTile, one.rows);
      const int64_t right = std::min(left + kTile, one.columns);
      for (int64_t row = top; row < bottom; ++row) {
        for (int64_t column = left; column < right; ++column) {
          target[column * one.rows + row] = source[row * one.columns + column];
        }
      }
    }
  }
}

}  // namespace

void measure_weights(
    std::span<const WeightPiece> pieces, c10::ScalarType dtype, const at::Tensor& amaxes) {
  if (amaxes.is_meta()) return;
  if (amaxes.is_cuda()) return measure_weights_on_cuda(pieces, dtype, amaxes);
  auto* bits = amaxes.mutable_data_ptr<int32_t>();
  for (const auto& piece : pieces) {
    auto& amax = bits[piece.weight];
    each_wide(piece.source, dtype, piece.count, [&](const float* some, int64_t, int64_t count) {
      amax = std::max(amax, static_cast<int32_t>(fp8::largest_magnitude(some, count)));
    });
  }
}

void encode_weights(
    std::span<const WeightPiece> pieces,
    c10::ScalarType dtype,
    const at::Tensor& amaxes,
    const at::Tensor& scales) {
  if (amaxes.is_meta()) return;
  if (amaxes.is_cuda()) return encode_weights_on_cuda(pieces, dtype, amaxes, scales);
  const auto* bits = amaxes.const_data_ptr<int32_t>();
  auto* numbers = scales.mutable_data_ptr<float>();
  for (int64_t i = 0; i < amaxes.numel(); ++i) {
    numbers[i] = fp8::scale_of(static_cast<uint32_t>(bits[i]));
  }
  for (const auto& piece : pieces) {
    const float factor = fp8::inverse_of(numbers[piece.weight]);
    auto* values = static_cast<uint8_t*>(piece.values);
    each_wide(piece.source, dtype, piece.count, [&](const float* some, int64_t at, int64_t count) {
      fp8::encode_all(some, factor, values + at, count);
    });
  }
}

void encode_weight_rows(
    std::span<const WeightRows> all, c10::ScalarType dtype, Scaling scaling, c10::Device device) {
  if (device.is_meta()) return;
  if (device.is_cuda()) return encode_weight_rows_on_cuda(all, dtype, scaling, device);
  for (const auto& one : all) encode_rows_of_weight(one, dtype, scaling);
}

void transpose(std::span<const Transposition> all, int64_t element_size, c10::Device device) {
  if (device.is_meta()) return;
  if (device.is_cuda()) return transpose_on_cuda(all, element_size, device);
  for (const auto& one : all) {
    element_size == 1 ? transpose_on_cpu<uint8_t>(one) : transpose_on_cpu<uint32_t>(one);
  }
}

}  // namespace sherd
