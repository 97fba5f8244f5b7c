// SPDX-License-Identifier: Apache-2.0
#include "kernels/fp8/encode_weights.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "kernels/cast_types.h"
#include "kernels/fp8/fp8_device.cuh"

namespace sherd {
namespace {

constexpr int kMostPieces = 64;  // of one launch: they travel as its argument
constexpr int kWeightThreads = 256;
constexpr int64_t kMostWeightBlocks = 2048;  // along one piece

template <class T>
struct Pieces {
  T all[kMostPieces];
};

template <class Visitor>
void with_weight_type(c10::ScalarType dtype, Visitor visitor) {
  switch (dtype) {
    case c10::kFloat: return visitor(float{});
    case c10::kHalf: return visitor(c10::Half{});
    default: return visitor(c10::BFloat16{});
  }
}

/// Calls body(values, i, count) for elements [i, i + count) that this thread has: eight at a time
/// where alignment allows.
template <class T, class Body>
__device__ void each_eight(const T* source, const uint8_t* target, int64_t count, Body body) {
  const bool aligned =
      reinterpret_cast<uintptr_t>(source) % 16 == 0 && reinterpret_cast<uintptr_t>(target) % 8 == 0;
  const int64_t start = int64_t{blockIdx.x} * kWeightThreads + threadIdx.x;
  const int64_t stride = int64_t{gridDim.x} * kWeightThreads;
  const int64_t vectors = aligned ? count / 8 : 0;
  float wide[8];
  for (int64_t i = start; i < vectors; i += stride) {
    widen8(load<8>(source + 8 * i), wide);
    body(wide, 8 * i, 8);
  }
  for (int64_t i = 8 * vectors + start; i < count; i += stride) {
    wide[0] = static_cast<float>(source[i]);
    body(wide, i, 1);
  }
}

/// blockIdx.y names the piece.
template <class T>
__global__ void __launch_bounds__(kWeightThreads)
    measure_weights_kernel(const Pieces<WeightPiece> pieces, int32_t* amaxes) {
  const auto& piece = pieces.all[blockIdx.y];
  uint32_t amax = 0;
  each_eight(
      static_cast<const T*>(piece.source), nullptr, piece.count,
      [&](const float(&values)[8], int64_t, int count) {
        for (int k = 0; k < count; ++k) amax = max(amax, fp8::magnitude_bits(values[k]));
      });
  amax = block_max<kWeightThreads>(amax);
  if (threadIdx.x == 0 && amax > 0) atomicMax(amaxes + piece.weight, static_cast<int32_t>(amax));
}

__global__ void scales_kernel(const int32_t* amaxes, float* scales, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) scales[i] = fp8::scale_of(static_cast<uint32_t>(amaxes[i]));
}

template <class T>
__global__ void __launch_bounds__(kWeightThreads)
    encode_weights_kernel(const Pieces<WeightPiece> pieces, const int32_t* amaxes) {
  const auto& piece = pieces.all[blockIdx.y];
  auto* target = static_cast<uint8_t*>(piece.values);
  const float factor = fp8::inverse_of(fp8::scale_of(static_cast<uint32_t>(amaxes[piece.weight])));
  each_eight(
      static_cast<const T*>(piece.source), target, piece.count,
      [&](const float(&values)[8], int64_t i, int count) {
        if (count == 8) {
          *reinterpret_cast<Bytes8*>(target + i) = encode8(values, factor);
        } else {
          target[i] = fp8::encode(values[0] * factor);
        }
      });
}

/// A block has a block of 128 × 128 elements: each thread 64 of them.
template <class T>
__global__ void __launch_bounds__(kWeightThreads)
    weight_blocks_kernel(const Pieces<WeightRows> all) {
  const auto& one = all.all[blockIdx.y];
  const int64_t across = one.columns / kFp8Tile;
  if (blockIdx.x >= one.rows / kFp8Tile * across) return;
  const int64_t top = blockIdx.x / across * kFp8Tile;
  const int64_t left = blockIdx.x % across * kFp8Tile;
  constexpr int kVectors = kFp8Tile * kFp8Tile / 8 / kWeightThreads;
  constexpr int kPerRow = kFp8Tile / 8;
  float wide[kVectors][8];
  uint32_t amax = 0;
  const auto at = [&](int k) {
    const int64_t vector = k * kWeightThreads + threadIdx.x;
    return (top + vector / kPerRow) * one.columns + left + vector % kPerRow * 8;
  };
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    widen8(load<8>(static_cast<const T*>(one.source) + at(k)), wide[k]);
    amax = largest8(wide[k], amax);
  }
  const float scale = fp8::scale_of(block_max<kWeightThreads>(amax));
  const float factor = fp8::inverse_of(scale);
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    *reinterpret_cast<Bytes8*>(static_cast<uint8_t*>(one.values) + at(k)) =
        encode8(wide[k], factor);
  }
  if (threadIdx.x == 0) static_cast<float*>(one.scales)[blockIdx.x] = scale;
}

/// A thread has 32 neighbours of a row, or of a column. Emulated products need no speed here.
template <class T, bool kColumns>
__global__ void mx_kernel(const Pieces<WeightRows> all) {
  const auto& one = all.all[blockIdx.y];
  const int64_t i = int64_t{blockIdx.x} * kWeightThreads + threadIdx.x;
  if (i >= one.rows * one.columns / kMxBlock) return;
  const int64_t first =
      kColumns ? i / one.columns * kMxBlock * one.columns + i % one.columns : i * kMxBlock;
  const int64_t step = kColumns ? one.columns : 1;
  const auto* source = static_cast<const T*>(one.source) + first;
  auto* target = static_cast<uint8_t*>(one.values) + first;
  uint32_t amax = 0;
  for (int k = 0; k < kMxBlock; ++k) {
    amax = max(amax, fp8::magnitude_bits(static_cast<float>(source[k * step])));
  }
  const float scale = fp8::scale_of(amax);
  const float factor = fp8::inverse_of(scale);
  for (int k = 0; k < kMxBlock; ++k) {
    target[k * step] = fp8::encode(static_cast<float>(source[k * step]) * factor);
  }
  static_cast<uint8_t*>(one.scales)[i] = fp8::exponent_of(scale);
}

constexpr int kTransposeTile = 64;

/// Tiles of 64 × 64 elements, by way of shared memory. blockIdx.y names the matrix.
template <class T>
__global__ void __launch_bounds__(kWeightThreads)
    transpose_kernel(const Pieces<Transposition> all) {
  __shared__ T tile[kTransposeTile][kTransposeTile + 4 / sizeof(T)];
  const auto& one = all.all[blockIdx.y];
  const int64_t across = (one.columns + kTransposeTile - 1) / kTransposeTile;
  const int64_t down = (one.rows + kTransposeTile - 1) / kTransposeTile;
  if (blockIdx.x >= across * down) return;
  const int64_t top = blockIdx.x / across * kTransposeTile;
  const int64_t left = blockIdx.x % across * kTransposeTile;
  const auto* source = static_cast<const T*>(one.source);
  auto* target = static_cast<T*>(one.target);
  for (int i = threadIdx.x; i < kTransposeTile * kTransposeTile; i += kWeightThreads) {
    const int row = i / kTransposeTile, column = i % kTransposeTile;
    if (top + row < one.rows && left + column < one.columns) {
      tile[row][column] = source[(top + row) * one.columns + left + column];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kTransposeTile * kTransposeTile; i += kWeightThreads) {
    const int column = i / kTransposeTile, row = i % kTransposeTile;
    if (top + row < one.rows && left + column < one.columns) {
      target[(left + column) * one.rows + top + row] = tile[row][column];
    }
  }
}

/// Bytes, by words: both sides have multiples of 16 rows and columns, and tiles of 128 rows and 64
/// columns are transposed as Note [How bytes are transposed] says.
__global__ void __launch_bounds__(kTileThreads)
    transpose_bytes_kernel(const Pieces<Transposition> all) {
  __shared__ TransposedTile<1> tile;
  const auto& one = all.all[blockIdx.y];
  const int64_t across = (one.columns + kTileColumns - 1) / kTileColumns;
  const int64_t down = (one.rows + kTileRows - 1) / kTileRows;
  if (blockIdx.x >= across * down) return;
  const int64_t top = blockIdx.x / across * kTileRows;
  const int64_t left = blockIdx.x % across * kTileColumns;
  const auto* source = static_cast<const uint8_t*>(one.source);
  const int64_t column = left + tile.first_column();
  Bytes8 bytes[4] = {};
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int64_t row = top + tile.first_row() + r;
    if (row < one.rows && column < one.columns) {
      bytes[r] = *reinterpret_cast<const Bytes8*>(source + row * one.columns + column);
    }
  }
  tile.put(0, bytes);
  __syncthreads();
  tile.write(0, static_cast<uint8_t*>(one.target), left, one.columns, top, one.rows);
}

unsigned most_blocks(int64_t count, int64_t each) {
  return static_cast<unsigned>(std::max<int64_t>(1, (count + each - 1) / each));
}

/// Calls launch(pieces, grid) for at most 64 pieces at a time; `blocks` of a piece are along x.
template <class T, class Blocks, class Launch>
void each_launch(std::span<const T> all, Blocks blocks, Launch launch) {
  for (size_t begin = 0; begin < all.size(); begin += kMostPieces) {
    const auto some = all.subspan(begin, std::min<size_t>(kMostPieces, all.size() - begin));
    Pieces<T> pieces;
    unsigned most = 0;
    for (size_t i = 0; i < some.size(); ++i) {
      pieces.all[i] = some[i];
      most = std::max(most, blocks(some[i]));
    }
    launch(pieces, dim3(most, static_cast<unsigned>(some.size())));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

unsigned piece_blocks(const WeightPiece& piece) {
  return static_cast<unsigned>(
      std::min<int64_t>(most_blocks(piece.count, 8 * kWeightThreads), kMostWeightBlocks));
}

}  // namespace

void measure_weights_on_cuda(
    std::span<const WeightPiece> pieces, c10::ScalarType dtype, const at::Tensor& amaxes) {
  const c10::cuda::CUDAGuard guard(amaxes.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  with_weight_type(dtype, [&](auto type) {
    each_launch(pieces, piece_blocks, [&](const auto& some, dim3 grid) {
      measure_weights_kernel<decltype(type)>
          <<<grid, kWeightThreads, 0, stream>>>(some, amaxes.mutable_data_ptr<int32_t>());
    });
  });
}

void encode_weights_on_cuda(
    std::span<const WeightPiece> pieces,
    c10::ScalarType dtype,
    const at::Tensor& amaxes,
    const at::Tensor& scales) {
  const c10::cuda::CUDAGuard guard(amaxes.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const auto* bits = amaxes.const_data_ptr<int32_t>();
  if (amaxes.numel() == 0) return;
  scales_kernel<<<most_blocks(amaxes.numel(), kWeightThreads), kWeightThreads, 0, stream>>>(
      bits, scales.mutable_data_ptr<float>(), amaxes.numel());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  with_weight_type(dtype, [&](auto type) {
    each_launch(pieces, piece_blocks, [&](const auto& some, dim3 grid) {
      encode_weights_kernel<decltype(type)><<<grid, kWeightThreads, 0, stream>>>(some, bits);
    });
  });
}

void encode_weight_rows_on_cuda(
    std::span<const WeightRows> all, c10::ScalarType dtype, Scaling scaling, c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int64_t each =
      scaling == Scaling::block ? kFp8Tile * kFp8Tile : kMxBlock * int64_t{kWeightThreads};
  const auto blocks = [&](const WeightRows& one) {
    return most_blocks(one.rows * one.columns, each);
  };
  with_weight_type(dtype, [&](auto type) {
    using T = decltype(type);
    each_launch(all, blocks, [&](const auto& some, dim3 grid) {
      if (scaling == Scaling::block) {
        weight_blocks_kernel<T><<<grid, kWeightThreads, 0, stream>>>(some);
      } else if (scaling == Scaling::mx_column) {
        mx_kernel<T, true><<<grid, kWeightThreads, 0, stream>>>(some);
      } else {
        mx_kernel<T, false><<<grid, kWeightThreads, 0, stream>>>(some);
      }
    });
  });
}

void transpose_on_cuda(
    std::span<const Transposition> all, int64_t element_size, c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const auto whole = [](const void* data, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
  };
  const bool words =
      element_size == 1 && std::all_of(all.begin(), all.end(), [&](const Transposition& one) {
        return one.rows % 16 == 0 && one.columns % 16 == 0 && whole(one.source, 8) &&
               whole(one.target, 4);
      });
  const auto blocks = [&](const Transposition& one) {
    return words ? most_blocks(one.rows, kTileRows) * most_blocks(one.columns, kTileColumns)
                 : most_blocks(one.rows, kTransposeTile) * most_blocks(one.columns, kTransposeTile);
  };
  each_launch(all, blocks, [&](const auto& some, dim3 grid) {
    if (words) {
      transpose_bytes_kernel<<<grid, kTileThreads, 0, stream>>>(some);
    } else if (element_size == 1) {
      transpose_kernel<uint8_t><<<grid, kWeightThreads, 0, stream>>>(some);
    } else {
      transpose_kernel<uint32_t><<<grid, kWeightThreads, 0, stream>>>(some);
    }
  });
}

}  // namespace sherd
