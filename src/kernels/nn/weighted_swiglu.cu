// SPDX-License-Identifier: Apache-2.0
#include "kernels/nn/weighted_swiglu.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cast_types.h"
#include "kernels/vectors.cuh"

namespace sherd {
namespace {

constexpr int kWeightedThreads = 256;

/// A few units in the last place of fp32, at a fraction of the instructions.
__device__ float opening(float x) {
  return __fdividef(1.0f, 1.0f + __expf(-x));
}
__device__ double opening(double x) {
  return 1.0 / (1.0 + exp(-x));
}

/// The sum over a block's threads, for its first thread: always in the same order.
template <class Math>
__device__ Math sum_of_block(Math value) {
  __shared__ Math sums[kWeightedThreads / kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  __syncthreads();  // the sums of the row before are read
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  Math sum = 0;
  if (threadIdx.x == 0) {
    for (const Math one : sums) sum += one;
  }
  return sum;
}

/// A block takes its rows in turn.
template <class T, int kCount>
__global__ void __launch_bounds__(kWeightedThreads) weighted_forward_kernel(
    const T* gate_up, const CastMath<T, T>* weights, T* activation, int64_t rows, int64_t width) {
  using Math = CastMath<T, T>;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const Math weight = weights[row];
    for (int64_t i = int64_t{threadIdx.x} * kCount; i < width; i += kWeightedThreads * kCount) {
      const auto gates = load<kCount>(gate_up + 2 * row * width + i);
      auto ups = load<kCount>(gate_up + (2 * row + 1) * width + i);
      for (int e = 0; e < kCount; ++e) {
        const auto gate = static_cast<Math>(gates.values[e]);
        const Math silu = gate * opening(gate);
        ups.values[e] = static_cast<T>(silu * static_cast<Math>(ups.values[e]) * weight);
      }
      store(activation + row * width + i, ups);
    }
  }
}

/// `d_activation` becomes the activation. A thread reads all of an element before it writes any of
/// it.
template <class T, int kCount>
__global__ void __launch_bounds__(kWeightedThreads) weighted_backward_kernel(
    const T* gate_up,
    const CastMath<T, T>* weights,
    T* d_activation,
    T* d_gate_up,
    CastMath<T, T>* d_weights,
    int64_t rows,
    int64_t width) {
  using Math = CastMath<T, T>;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const Math weight = weights[row];
    Math products = 0;
    for (int64_t i = int64_t{threadIdx.x} * kCount; i < width; i += kWeightedThreads * kCount) {
      auto gates = load<kCount>(gate_up + 2 * row * width + i);
      auto ups = load<kCount>(gate_up + (2 * row + 1) * width + i);
      auto gradients = load<kCount>(d_activation + row * width + i);
      for (int e = 0; e < kCount; ++e) {
        const auto gate = static_cast<Math>(gates.values[e]);
        const auto up = static_cast<Math>(ups.values[e]);
        const auto gradient = static_cast<Math>(gradients.values[e]);
        const Math open = opening(gate);
        const Math silu = gate * open;
        const Math activation = silu * up;
        products += activation * gradient;
        gates.values[e] = static_cast<T>(gradient * weight * up * open * (1 + gate - silu));
        ups.values[e] = static_cast<T>(gradient * weight * silu);
        gradients.values[e] = static_cast<T>(activation * weight);
      }
      store(d_gate_up + 2 * row * width + i, gates);
      store(d_gate_up + (2 * row + 1) * width + i, ups);
      store(d_activation + row * width + i, gradients);
    }
    const Math sum = sum_of_block(products);
    if (threadIdx.x == 0) d_weights[row] = sum;
  }
}

/// Calls `launch` with how many elements a thread takes at a time, and the number of blocks.
template <class T, class Launch>
void with_blocks(int64_t rows, int64_t width, std::initializer_list<const T*> all, Launch launch) {
  if (rows == 0) return;
  constexpr int64_t kMost = 1 << 20;
  const auto blocks = static_cast<unsigned>(std::min(rows, kMost));
  constexpr int kCount = 16 / sizeof(T);
  const bool wide = width % kCount == 0 && std::all_of(all.begin(), all.end(), [](const T* data) {
                      return reinterpret_cast<uintptr_t>(data) % 16 == 0;
                    });
  if (wide) {
    launch(std::integral_constant<int, kCount>(), blocks);
  } else {
    launch(std::integral_constant<int, 1>(), blocks);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

void weighted_swiglu_forward_on_cuda(
    const at::Tensor& gate_up, const at::Tensor& weight, const at::Tensor& activation) {
  const c10::cuda::CUDAGuard guard(gate_up.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int64_t rows = activation.size(0), width = activation.size(1);
  with_float_type(gate_up.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const auto* from = gate_up.const_data_ptr<T>();
    const auto* weights = weight.const_data_ptr<CastMath<T, T>>();
    auto* to = activation.mutable_data_ptr<T>();
    with_blocks<T>(rows, width, {from, to}, [&](auto count, unsigned blocks) {
      weighted_forward_kernel<T, count>
          <<<blocks, kWeightedThreads, 0, stream>>>(from, weights, to, rows, width);
    });
  });
}

void weighted_swiglu_backward_on_cuda(const WeightedSwigluBackward& work) {
  const c10::cuda::CUDAGuard guard(work.gate_up.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int64_t rows = work.d_activation.size(0), width = work.d_activation.size(1);
  with_float_type(work.gate_up.scalar_type(), [&](auto type) {
    using T = decltype(type);
    using Math = CastMath<T, T>;
    const auto* gate_up = work.gate_up.const_data_ptr<T>();
    const auto* weights = work.weight.const_data_ptr<Math>();
    auto* d_activation = work.d_activation.mutable_data_ptr<T>();
    auto* d_gate_up = work.d_gate_up.mutable_data_ptr<T>();
    auto* d_weights = work.d_weight.mutable_data_ptr<Math>();
    with_blocks<T>(
        rows, width, {gate_up, d_activation, d_gate_up}, [&](auto count, unsigned blocks) {
          weighted_backward_kernel<T, count><<<blocks, kWeightedThreads, 0, stream>>>(
              gate_up, weights, d_activation, d_gate_up, d_weights, rows, width);
        });
  });
}

}  // namespace sherd
