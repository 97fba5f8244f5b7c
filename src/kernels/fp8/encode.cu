// SPDX-License-Identifier: Apache-2.0
#include "kernels/fp8/encode.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include "kernels/cast_types.h"
#include "kernels/fp8/fp8_device.cuh"

namespace sherd {
namespace {

constexpr int kRowThreads = 256;

template <class Visitor>
void with_narrow_type(c10::ScalarType dtype, Visitor visitor) {
  switch (dtype) {
    case c10::kFloat: return visitor(float{});
    case c10::kHalf: return visitor(c10::Half{});
    default: return visitor(c10::BFloat16{});
  }
}

/// Calls launch(held) with the number of vectors of a row that each thread keeps in registers; 0:
/// too many, the row is read twice.
template <class Launch>
void with_held(int64_t columns, Launch launch) {
  const int64_t vectors = (columns + 8 * kRowThreads - 1) / (8 * kRowThreads);
  if (vectors <= 1) return launch(std::integral_constant<int, 1>());
  if (vectors <= 2) return launch(std::integral_constant<int, 2>());
  if (vectors <= 4) return launch(std::integral_constant<int, 4>());
  if (vectors <= 8) return launch(std::integral_constant<int, 8>());
  launch(std::integral_constant<int, 0>());
}

/// The eight columns of a thread in its k-th turn.
__device__ int64_t column_of(int k) {
  return 8 * (int64_t{k} * kRowThreads + threadIdx.x);
}

/// A block per row: its scale and, unless `values` is null, its bytes. With `input_scales`, the
/// bound is raised to the product of both scales.
template <class T, int kHeld>
__global__ void __launch_bounds__(kRowThreads) rows_kernel(
    const T* x,
    uint8_t* values,
    float* scales,
    const float* input_scales,
    unsigned* bound,
    int64_t columns) {
  const int64_t row = blockIdx.x;
  const T* mine = x + row * columns;
  Vector<T, 8> held[kHeld > 0 ? kHeld : 1];
  uint32_t amax = 0;
  float wide[8];
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (column_of(k) < columns) held[k] = load<8>(mine + column_of(k));
    }
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (column_of(k) >= columns) break;
      widen8(held[k], wide);
      amax = largest8(wide, amax);
    }
  } else {
    for (int k = 0; column_of(k) < columns; ++k) {
      widen8(load<8>(mine + column_of(k)), wide);
      amax = largest8(wide, amax);
    }
  }
  const float scale = fp8::scale_of(block_max<kRowThreads>(amax));
  if (threadIdx.x == 0) {
    scales[row] = scale;
    if (input_scales) atomicMax(bound, fp8::magnitude_bits(scale * input_scales[row]));
  }
  if (!values) return;
  const float factor = fp8::inverse_of(scale);
  const auto put = [&](int k, const Vector<T, 8>& vector) {
    widen8(vector, wide);
    *reinterpret_cast<Bytes8*>(values + row * columns + column_of(k)) = encode8(wide, factor);
  };
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (column_of(k) < columns) put(k, held[k]);
    }
  } else {
    for (int k = 0; column_of(k) < columns; ++k) put(k, load<8>(mine + column_of(k)));
  }
}

template <class T>
void launch_rows(
    const at::Tensor& x,
    uint8_t* values,
    const at::Tensor& scales,
    const float* input_scales,
    float* bound) {
  const auto rows = static_cast<unsigned>(x.size(0));
  if (rows == 0) return;
  with_held(x.size(1), [&](auto held) {
    rows_kernel<T, held><<<rows, kRowThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
        x.const_data_ptr<T>(), values, scales.mutable_data_ptr<float>(), input_scales,
        reinterpret_cast<unsigned*>(bound), x.size(1));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

/// Scales for `kEach` neighbours of a row, by as many threads as have them; [columns / kEach, rows]
/// if they are of 32 bits, else [rows, columns / kEach].
template <class T, int kEach, class Scale>
__global__ void neighbours_kernel(
    const T* x, uint8_t* values, Scale* scales, int64_t rows, int64_t columns) {
  constexpr int kThreads = kEach / 8;
  const int64_t first = 8 * (int64_t{blockIdx.x} * blockDim.x + threadIdx.x);
  const int64_t row = first / columns;
  const int64_t column = first % columns;
  const bool inside = row < rows;
  float wide[8] = {};
  if (inside) widen8(load<8>(x + first), wide);
  uint32_t amax = largest8(wide, 0);
  for (int offset = kThreads / 2; offset > 0; offset /= 2) {
    amax = max(amax, __shfl_xor_sync(0xffffffffu, amax, offset));
  }
  if (!inside) return;
  const float scale = fp8::scale_of(amax);
  *reinterpret_cast<Bytes8*>(values + first) = encode8(wide, fp8::inverse_of(scale));
  if (column % kEach != 0) return;
  if constexpr (sizeof(Scale) == 4) {
    scales[column / kEach * rows + row] = scale;
  } else {
    scales[first / kEach] = fp8::exponent_of(scale);
  }
}

/// A tile's bytes, transposed and, unless `rows_out` is null, as they are: x times `scales` of its
/// row (its inverse with `divides`), over the bound unless that is null.
template <class T>
__global__ void __launch_bounds__(kTileThreads) tile_kernel(
    const T* x,
    const float* scales,
    bool divides,
    const float* bound,
    uint8_t* rows_out,
    uint8_t* columns_out,
    int64_t rows,
    int64_t columns,
    int64_t length) {
  __shared__ TransposedTile<1> tile;
  const int64_t column = tile_column() + tile.first_column();
  const float over = bound ? fp8::inverse_of(*bound) : 1.0f;
  Bytes8 bytes[4] = {};
  Vector<T, 8> vectors[4];
  const int64_t first = tile_row() + tile.first_row();
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    if (first + r < rows && column < columns) {
      vectors[r] = load<8>(x + (first + r) * columns + column);
    }
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    if (first + r >= rows || column >= columns) continue;
    float wide[8];
    widen8(vectors[r], wide);
    const float scale = scales[first + r];
    bytes[r] = encode8(wide, divides ? fp8::inverse_of(scale) : scale * over);
    if (rows_out) {
      *reinterpret_cast<Bytes8*>(rows_out + (first + r) * columns + column) = bytes[r];
    }
  }
  tile.put(0, bytes);
  __syncthreads();
  tile.write(0, columns_out, tile_column(), columns, tile_row(), length);
}

template <class T>
void launch_tiles(
    const at::Tensor& x,
    const at::Tensor& scales,
    const float* bound,
    uint8_t* rows_out,
    const at::Tensor& columns_out) {
  const int64_t rows = x.size(0), columns = x.size(1), length = columns_out.size(1);
  if (columns_out.numel() == 0) return;
  tile_kernel<T>
      <<<tile_grid(length, columns), kTileThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
          x.const_data_ptr<T>(), scales.const_data_ptr<float>(), /*divides=*/bound == nullptr,
          bound, rows_out, static_cast<uint8_t*>(columns_out.mutable_data_ptr()), rows, columns,
          length);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

/// Scales along columns, of `kEach` rows: a thread has a column of a block. For recipes that need
/// no speed here: a column's values are read with a stride.
template <class T, int kEach>
__global__ void columns_kernel(
    const T* x, uint8_t* values, void* scales, int64_t rows, int64_t columns, int64_t length) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t first = int64_t{blockIdx.y} * kEach;
  if (column >= columns) return;
  uint32_t amax = 0;
  for (int i = 0; i < kEach && first + i < rows; ++i) {
    amax = max(amax, fp8::magnitude_bits(static_cast<float>(x[(first + i) * columns + column])));
  }
  const float scale = fp8::scale_of(amax);
  const float factor = fp8::inverse_of(scale);
  for (int i = 0; i < kEach; ++i) {
    const float value =
        first + i < rows ? static_cast<float>(x[(first + i) * columns + column]) : 0.0f;
    const uint8_t byte = fp8::encode(value * factor);
    constexpr bool kTransposes = kEach == kFp8Tile;
    values[kTransposes ? column * length + first + i : (first + i) * columns + column] = byte;
  }
  if constexpr (kEach == kFp8Tile) {
    static_cast<float*>(scales)[blockIdx.y * columns + column] = scale;
  } else {
    static_cast<uint8_t*>(scales)[blockIdx.y * columns + column] = fp8::exponent_of(scale);
  }
}

template <class Target>
__global__ void decode_kernel(
    const uint8_t* values,
    const void* scales,
    Scaling scaling,
    Target* target,
    int64_t rows,
    int64_t columns) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= rows * columns) return;
  const int64_t row = i / columns;
  const int64_t column = i % columns;
  const auto* wide = static_cast<const float*>(scales);
  const auto* exponents = static_cast<const uint8_t*>(scales);
  float scale = 0;
  switch (scaling) {
    case Scaling::tensor: scale = wide[0]; break;
    case Scaling::row: scale = wide[row]; break;
    case Scaling::tile: scale = wide[column / kFp8Tile * rows + row]; break;
    case Scaling::block:
      scale = wide[row / kFp8Tile * (columns / kFp8Tile) + column / kFp8Tile];
      break;
    case Scaling::mx_row: scale = fp8::scale_from(exponents[i / kMxBlock]); break;
    case Scaling::mx_column:
      scale = fp8::scale_from(exponents[row / kMxBlock * columns + column]);
      break;
  }
  target[i] = static_cast<Target>(fp8::decode(values[i]) * scale);
}

uint8_t* data_of(const at::Tensor& values) {
  return static_cast<uint8_t*>(values.mutable_data_ptr());
}

unsigned blocks_of(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

}  // namespace

void encode_rows_on_cuda(const at::Tensor& x, const Fp8Matrix& result) {
  const c10::cuda::CUDAGuard guard(x.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  with_narrow_type(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    auto* values = data_of(result.values);
    if (result.scaling == Scaling::row) {
      return launch_rows<T>(x, values, result.scales, nullptr, nullptr);
    }
    if (x.numel() == 0) return;
    const auto* from = x.const_data_ptr<T>();
    const auto blocks = blocks_of(x.numel(), 8 * kRowThreads);
    if (result.scaling == Scaling::tile) {
      neighbours_kernel<T, kFp8Tile><<<blocks, kRowThreads, 0, stream>>>(
          from, values, result.scales.mutable_data_ptr<float>(), x.size(0), x.size(1));
    } else {
      neighbours_kernel<T, kMxBlock><<<blocks, kRowThreads, 0, stream>>>(
          from, values, result.scales.mutable_data_ptr<uint8_t>(), x.size(0), x.size(1));
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

void encode_columns_on_cuda(const at::Tensor& x, const Fp8Matrix& result) {
  if (result.values.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(x.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const bool tiles = result.scaling == Scaling::tile;
  const int64_t length = tiles ? result.values.size(1) : result.values.size(0);
  const dim3 grid(
      blocks_of(x.size(1), kRowThreads), blocks_of(length, tiles ? kFp8Tile : kMxBlock));
  with_narrow_type(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto each) {
      columns_kernel<T, each><<<grid, kRowThreads, 0, stream>>>(
          x.const_data_ptr<T>(), data_of(result.values), result.scales.mutable_data_ptr(),
          x.size(0), x.size(1), length);
    };
    tiles ? launch(std::integral_constant<int, kFp8Tile>())
          : launch(std::integral_constant<int, kMxBlock>());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

void encode_gradient_on_cuda(
    const at::Tensor& gradient, const at::Tensor& input_scales, const Fp8Gradient& result) {
  const c10::cuda::CUDAGuard guard(gradient.device());
  auto* bound = result.bound.mutable_data_ptr<float>();
  C10_CUDA_CHECK(
      cudaMemsetAsync(bound, 0, sizeof(float), c10::cuda::getCurrentCUDAStream().stream()));
  with_narrow_type(gradient.scalar_type(), [&](auto type) {
    using T = decltype(type);
    launch_rows<T>(
        gradient, nullptr, result.rows.scales, input_scales.const_data_ptr<float>(), bound);
    launch_tiles<T>(
        gradient, result.rows.scales, nullptr, data_of(result.rows.values), result.columns.values);
  });
}

void encode_input_again_on_cuda(
    const at::Tensor& input, const Fp8Gradient& gradient, const Fp8Matrix& result) {
  const c10::cuda::CUDAGuard guard(input.device());
  with_narrow_type(input.scalar_type(), [&](auto type) {
    launch_tiles<decltype(type)>(
        input, gradient.rows.scales, gradient.bound.const_data_ptr<float>(), nullptr,
        result.values);
  });
}

void decode_on_cuda(const Fp8Matrix& matrix, const at::Tensor& result) {
  const auto& [values, scales, scaling] = matrix;
  if (values.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(values.device());
  with_narrow_type(result.scalar_type(), [&](auto type) {
    using T = decltype(type);
    decode_kernel<T>
        <<<blocks_of(values.numel(), kRowThreads), kRowThreads, 0,
           c10::cuda::getCurrentCUDAStream()>>>(
            static_cast<const uint8_t*>(values.const_data_ptr()), scales.const_data_ptr(), scaling,
            result.mutable_data_ptr<T>(), values.size(0), values.size(1));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

}  // namespace sherd
