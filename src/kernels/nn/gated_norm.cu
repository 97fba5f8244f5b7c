// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/nn/mamba_device.h"
#include "kernels/sigmoid.cuh"
#include "kernels/vectors.cuh"

namespace sherd {
namespace {

constexpr int kGateVector = 8;  // elements of a vector

/// A group of a row is shared by `kRowThreads` threads, with `kHeld` vectors each. Narrow groups
/// are a warp's, several to a block.
template <int row_threads, int held>
struct GateShape {
  static constexpr int kRowThreads = row_threads;
  static constexpr int kHeld = held;
  static constexpr int kBlock = std::max(row_threads, 256);
  static constexpr int kRows = kBlock / row_threads;
  static constexpr int kMost = kGateVector * held * row_threads;

  /// body(k, column) for the vectors of this thread, which begin at `column` of the group.
  template <class Body>
  static __device__ void each(int width, Body body) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int column = (threadIdx.x % kRowThreads + k * kRowThreads) * kGateVector;
      if (column < width) body(k, column);
    }
  }

  /// The sums over the threads of a group, the same bits in each. Turns alternate between two
  /// places, so that one barrier each is enough.
  static __device__ float2 sum(float2 value, int turn) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      value.x += __shfl_xor_sync(kAllLanes, value.x, offset);
      value.y += __shfl_xor_sync(kAllLanes, value.y, offset);
    }
    if constexpr (kRowThreads > kWarp) {
      __shared__ float2 sums[2][kRowThreads / kWarp];
      if (threadIdx.x % kWarp == 0) sums[turn][threadIdx.x / kWarp] = value;
      __syncthreads();
      value = {0, 0};
      for (const auto& one : sums[turn]) {
        value.x += one.x;
        value.y += one.y;
      }
    }
    return value;
  }
};

template <class GateShape>
__global__ void __launch_bounds__(GateShape::kBlock)
    gated_norm_forward_kernel(const DeviceGatedNorm norm, Bf16* y) {
  const int width = norm.dim / norm.groups;
  const int first = blockIdx.y * width;
  const int64_t row = int64_t{blockIdx.x} * GateShape::kRows +
                      static_cast<int>(threadIdx.x) / GateShape::kRowThreads;
  if (row >= norm.rows) return;  // a warp's, or the block's
  const Bf16* x = norm.x + row * norm.dim + first;
  const Bf16* gate = norm.gate + row * norm.gate_stride + first;
  Vector<Bf16, kGateVector> xs[GateShape::kHeld], gates[GateShape::kHeld];
  GateShape::each(width, [&](int k, int column) {
    xs[k] = load<kGateVector>(x + column);
    gates[k] = load<kGateVector>(gate + column);
  });
  float values[GateShape::kHeld][kGateVector];
  float2 squares{};
  GateShape::each(width, [&](int k, int) {
    for (int e = 0; e < kGateVector; ++e) {
      const float gate = __bfloat162float(gates[k].values[e]);
      values[k][e] = __bfloat162float(xs[k].values[e]) * (gate * sigmoid(gate));
      squares.x += values[k][e] * values[k][e];
    }
  });
  const float each = 1.0f / static_cast<float>(width);
  const float scale = rsqrtf(GateShape::sum(squares, 0).x * each + norm.epsilon);
  GateShape::each(width, [&](int k, int column) {
    for (int e = 0; e < kGateVector; ++e) {
      const float weight = norm.weight[first + column + e];
      xs[k].values[e] = __float2bfloat16_rn(values[k][e] * scale * weight);
    }
    store(y + row * norm.dim + first + column, xs[k]);
  });
}

/// The blocks of a group share the rows; each thread keeps its part of the weight's gradient.
template <class GateShape>
__global__ void __launch_bounds__(GateShape::kBlock)
    gated_norm_backward_kernel(const DeviceGatedNorm norm, const DeviceGatedNormGradients of) {
  const int width = norm.dim / norm.groups;
  const int first = blockIdx.y * width;
  const int part =
      blockIdx.x * GateShape::kRows + static_cast<int>(threadIdx.x) / GateShape::kRowThreads;
  const int parts = gridDim.x * GateShape::kRows;
  const float each = 1.0f / static_cast<float>(width);
  float sums[GateShape::kHeld][kGateVector] = {};
  int turn = 0;
  for (int64_t row = part; row < norm.rows; row += parts) {
    const int64_t begin = row * norm.dim + first;
    Vector<Bf16, kGateVector> xs[GateShape::kHeld], gates[GateShape::kHeld], dys[GateShape::kHeld];
    GateShape::each(width, [&](int k, int column) {
      xs[k] = load<kGateVector>(norm.x + begin + column);
      gates[k] = load<kGateVector>(norm.gate + row * norm.gate_stride + first + column);
      dys[k] = load<kGateVector>(of.dy + begin + column);
    });
    // Of v = x · silu(gate): Σ v², and Σ v · dy · weight.
    float2 both{};
    GateShape::each(width, [&](int k, int column) {
      for (int e = 0; e < kGateVector; ++e) {
        const float gate = __bfloat162float(gates[k].values[e]);
        const float value = __bfloat162float(xs[k].values[e]) * (gate * sigmoid(gate));
        both.x += value * value;
        both.y += value * __bfloat162float(dys[k].values[e]) * norm.weight[first + column + e];
      }
    });
    both = GateShape::sum(both, turn);
    turn ^= 1;
    const float scale = rsqrtf(both.x * each + norm.epsilon);
    const float along = both.y * scale * scale * each;
    GateShape::each(width, [&](int k, int column) {
      Vector<Bf16, kGateVector> again;
      for (int e = 0; e < kGateVector; ++e) {
        const float weight = norm.weight[first + column + e];
        const float x = __bfloat162float(xs[k].values[e]);
        const float gate = __bfloat162float(gates[k].values[e]);
        const float dy = __bfloat162float(dys[k].values[e]);
        const float open = sigmoid(gate), silu = gate * open;
        const float normed = x * silu * scale;
        const float d_value = scale * (dy * weight - x * silu * along);
        sums[k][e] += dy * normed;
        xs[k].values[e] = __float2bfloat16_rn(d_value * silu);
        gates[k].values[e] = __float2bfloat16_rn(d_value * x * open * (1.0f + gate - silu));
        again.values[e] = __float2bfloat16_rn(normed * weight);
      }
      store(of.dx + begin + column, xs[k]);
      store(of.d_gate + row * of.d_gate_stride + first + column, gates[k]);
      if (of.y) store(of.y + begin + column, again);
    });
  }
  GateShape::each(width, [&](int k, int column) {
    for (int e = 0; e < kGateVector; e += 4) {
      Vector<float, 4> four;
      for (int j = 0; j < 4; ++j) four.values[j] = sums[k][e + j];
      store(of.sums + int64_t{part} * norm.dim + first + column + e, four);
    }
  });
}

/// Calls visit with the shape for groups of this width.
template <class Visit>
auto with_gate_shape(int width, Visit visit) {
  static_assert(GateShape<32, 4>::kMost == kWarpGatedNorm && GateShape<32, 4>::kRows == 8);
  static_assert(GateShape<512, 4>::kMost == kMostGatedNorm);
  if (width <= GateShape<32, 2>::kMost) return visit(GateShape<32, 2>());
  if (width <= kWarpGatedNorm) return visit(GateShape<32, 4>());
  if (width <= GateShape<256, 2>::kMost) return visit(GateShape<256, 2>());
  if (width <= GateShape<256, 4>::kMost) return visit(GateShape<256, 4>());
  return visit(GateShape<512, 4>());
}

}  // namespace

void launch_gated_norm_forward(const DeviceGatedNorm& norm, Bf16* y, cudaStream_t stream) {
  with_gate_shape(norm.dim / norm.groups, [&]<class S>(S) {
    const dim3 blocks(static_cast<unsigned>((norm.rows + S::kRows - 1) / S::kRows), norm.groups);
    gated_norm_forward_kernel<S><<<blocks, S::kBlock, 0, stream>>>(norm, y);
  });
}

void launch_gated_norm_backward(
    const DeviceGatedNorm& norm, const DeviceGatedNormGradients& of, cudaStream_t stream) {
  with_gate_shape(norm.dim / norm.groups, [&]<class S>(S) {
    const dim3 blocks(gated_norm_blocks(norm.groups), norm.groups);
    gated_norm_backward_kernel<S><<<blocks, S::kBlock, 0, stream>>>(norm, of);
  });
}

}  // namespace sherd
