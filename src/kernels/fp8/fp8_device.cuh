// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/fp8/fp8_math.h"
#include "kernels/vectors.cuh"

namespace sherd {

/// Eight numbers in e4m3.
struct alignas(8) Bytes8 {
  uint8_t values[8];
};

/// Encodes values · factor. As fp8::encode for magnitudes up to 448, and for NaN.
__device__ inline Bytes8 encode8(const float (&values)[8], float factor) {
  Bytes8 result;
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    const float2 pair = make_float2(values[i] * factor, values[i + 1] * factor);
    const __nv_fp8x2_storage_t two = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
    result.values[i] = static_cast<uint8_t>(two & 0xff);
    result.values[i + 1] = static_cast<uint8_t>(two >> 8);
  }
  return result;
}

template <class T>
__device__ void widen8(const Vector<T, 8>& vector, float (&values)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = static_cast<float>(vector.values[i]);
}

__device__ inline uint32_t largest8(const float (&values)[8], uint32_t largest) {
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = max(largest, fp8::magnitude_bits(values[i]));
  return largest;
}

/// The maximum over the threads of a block, the same in each of them. Once per kernel.
template <int kThreads>
__device__ uint32_t block_max(uint32_t value) {
  static_assert(kThreads % kWarp == 0);
  __shared__ uint32_t warps[kThreads / kWarp];
  value = __reduce_max_sync(0xffffffffu, value);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = warps[0];
  for (int warp = 1; warp < kThreads / kWarp; ++warp) value = max(value, warps[warp]);
  return value;
}

// ---- tiles --------------------------------------------------------------------------------------

// Note [How bytes are transposed]
// A block has a tile of 128 rows and 64 columns. A thread works on eight columns of four rows below
// one another: of the sixteen-byte loads of a warp, eight lie side by side. The four bytes of a
// column are a word, and words go through shared memory, so that every column is written by a warp
// as 128 bytes in a row. Rows beyond the last are zero.

constexpr int kTileRows = 128;
constexpr int kTileColumns = 64;
constexpr int kTileThreads = 256;
constexpr int kTileRound = 4 * kTileThreads / (kTileColumns / 8);  // rows of a round: 128

/// The transposed bytes of `kOutputs` matrices on their way out.
template <int kOutputs>
struct TransposedTile {
  static constexpr int kWords = kTileRows / 4;
  uint32_t words[kOutputs][kTileColumns][kWords + 1];

  /// This thread's columns and rows within the tile.
  static __device__ int first_column() { return threadIdx.x % (kTileColumns / 8) * 8; }
  static __device__ int first_row() { return threadIdx.x / (kTileColumns / 8) * 4; }

  /// Puts what this thread has made of its four rows: rows[r] has its eight columns.
  __device__ void put(int output, const Bytes8 (&rows)[4]) {
    const int word = first_row() / 4;
#pragma unroll
    for (int column = 0; column < 8; ++column) {
      uint32_t four = 0;
#pragma unroll
      for (int r = 0; r < 4; ++r) four |= uint32_t{rows[r].values[column]} << (8 * r);
      words[output][first_column() + column][word] = four;
    }
  }

  /// Writes the columns of one output to its transposed matrix, whose rows have `length` bytes, a
  /// multiple of 16. After __syncthreads().
  __device__ void write(
      int output, uint8_t* target, int64_t first, int64_t columns, int64_t row, int64_t length) {
    for (int column = threadIdx.x / kWarp; column < kTileColumns; column += kTileThreads / kWarp) {
      if (first + column >= columns) return;
      const int64_t at = row + 4 * (threadIdx.x % kWarp);
      if (at >= length) continue;
      const uint32_t word = words[output][column][threadIdx.x % kWarp];
      *reinterpret_cast<uint32_t*>(target + (first + column) * length + at) = word;
    }
  }
};
static_assert(kTileRound == kTileRows);

/// The grid of tiles of a matrix. Blocks go from the last rows to the first: these are more likely
/// to be in the cache still, when another kernel has just read the matrix.
inline dim3 tile_grid(int64_t rows, int64_t columns) {
  return dim3(
      static_cast<unsigned>((columns + kTileColumns - 1) / kTileColumns),
      static_cast<unsigned>((rows + kTileRows - 1) / kTileRows));
}
__device__ inline int64_t tile_row() {
  return int64_t{gridDim.y - 1 - blockIdx.y} * kTileRows;
}
__device__ inline int64_t tile_column() {
  return int64_t{blockIdx.x} * kTileColumns;
}

}  // namespace sherd
