// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_pipeline.h>

#include <cstdint>

#include "kernels/vectors.cuh"

// Products of bf16 tiles in shared memory, by warps, with sums in fp32 (mma.m16n8k16). Lane i of a
// warp has of a result of 16 × 8 the elements (i / 4, 2 · (i % 4) + {0, 1}) and those 8 rows below.

namespace sherd {

using Bf16 = __nv_bfloat16;

/// Two numbers rounded to bf16, the first in the low half.
__device__ inline uint32_t packed(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(both);
}
__device__ inline float2 unpacked(uint32_t both) {
  return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(both));
}

/// The left operand of a product: 16 rows of 16 elements.
struct LeftTile {
  uint32_t words[4];
};
/// The right operands of two products: twice 8 columns of 16 elements.
struct RightTiles {
  uint32_t words[4];
};
/// A result: 16 rows of 8 elements.
struct ResultTile {
  float values[4];
};

/// Four matrices of 8 × 8; lane i gives the address of a row. With `turned`, each is transposed.
template <bool turned>
__device__ inline void load_matrices(uint32_t (&words)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (turned) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  }
}

/// result += left · right.
__device__ inline void multiply_add(
    ResultTile& result, const LeftTile& left, uint32_t right_low, uint32_t right_high) {
  auto& sum = result.values;
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(left.words[0]), "r"(left.words[1]), "r"(left.words[2]), "r"(left.words[3]),
        "r"(right_low), "r"(right_high));
}
/// The same with two neighbouring results.
__device__ inline void multiply_add(
    ResultTile* two, const LeftTile& left, const RightTiles& right) {
  multiply_add(two[0], left, right.words[0], right.words[1]);
  multiply_add(two[1], left, right.words[2], right.words[3]);
}

/// Two neighbouring results, 16 × 16, as the left operand of a further product.
__device__ inline LeftTile as_left(const ResultTile* two) {
  const auto &a = two[0].values, &b = two[1].values;
  return {{packed(a[0], a[1]), packed(a[2], a[3]), packed(b[0], b[1]), packed(b[2], b[3])}};
}

/// A tile in shared memory. The 16-byte pieces of its rows are permuted, so that eight rows that
/// are read together lie in different banks.
template <int kRows, int kColumns>
class SharedTile {
 public:
  static constexpr int kBytes = kRows * kColumns * sizeof(Bf16);

  __device__ explicit SharedTile(char* data) : data_(data) {}

  __device__ char* piece(int row, int index) const {
    constexpr int kPieces = kColumns / 8;
    constexpr int kTurns = kPieces < 8 ? kPieces : 8;
    const int turn = row / (8 / kTurns) % kTurns;
    return data_ + (row * kPieces + (index ^ turn)) * 16;
  }
  /// Two neighbouring elements, the first at an even column.
  __device__ uint32_t& pair(int row, int column) const {
    return *reinterpret_cast<uint32_t*>(piece(row, column / 8) + column % 8 * sizeof(Bf16));
  }

  /// Begins to copy rows that lie `stride` elements apart; those from `valid` on become 0.
  __device__ void fetch(const Bf16* source, int64_t stride, int valid) const {
    constexpr int kPieces = kColumns / 8;
    for (int i = threadIdx.x; i < kRows * kPieces; i += blockDim.x) {
      const int row = i / kPieces, index = i % kPieces;
      const bool there = row < valid;
      const Bf16* from = source + (there ? row * stride + index * 8 : 0);
      __pipeline_memcpy_async(piece(row, index), from, 16, there ? 0 : 16);
    }
  }

  /// Rows first_row to + 15 and columns first_column to + 15 as a left operand.
  __device__ LeftTile left(int first_row, int first_column) const {
    const int lane = threadIdx.x % kWarp, matrix = lane / 8;
    LeftTile tile;
    load_matrices<false>(
        tile.words, piece(first_row + lane % 8 + matrix % 2 * 8, first_column / 8 + matrix / 2));
    return tile;
  }
  /// The same elements, transposed.
  __device__ LeftTile turned_left(int first_row, int first_column) const {
    const int lane = threadIdx.x % kWarp, matrix = lane / 8;
    LeftTile tile;
    load_matrices<true>(
        tile.words, piece(first_row + lane % 8 + matrix / 2 * 8, first_column / 8 + matrix % 2));
    return tile;
  }
  /// 16 rows as the columns of two right operands: left · (these rows)ᵀ.
  __device__ RightTiles right_of_rows(int first_row, int first_column) const {
    const int lane = threadIdx.x % kWarp, matrix = lane / 8;
    RightTiles tiles;
    load_matrices<false>(
        tiles.words, piece(first_row + lane % 8 + matrix / 2 * 8, first_column / 8 + matrix % 2));
    return tiles;
  }
  /// 16 columns as those of two right operands: left · (these elements).
  __device__ RightTiles right(int first_row, int first_column) const {
    const int lane = threadIdx.x % kWarp, matrix = lane / 8;
    RightTiles tiles;
    load_matrices<true>(
        tiles.words, piece(first_row + lane % 8 + matrix % 2 * 8, first_column / 8 + matrix / 2));
    return tiles;
  }

 private:
  char* data_;
};

}  // namespace sherd
