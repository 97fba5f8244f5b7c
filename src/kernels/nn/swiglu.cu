// SPDX-License-Identifier: Apache-2.0
#include "kernels/nn/swiglu.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cast_types.h"
#include "kernels/sigmoid.cuh"
#include "kernels/vectors.cuh"

namespace sherd {
namespace {

constexpr int kSwigluThreads = 256;
constexpr int kSwigluBatch = 2;  // rows of a thread whose loads are under way at a time

/// body(k, row) for the rows that a thread works on together.
template <class Body>
__device__ void each_row(int64_t first, int64_t rows, Body body) {
#pragma unroll
  for (int k = 0; k < kSwigluBatch; ++k) {
    const int64_t row = first + int64_t{k} * gridDim.y;
    if (row < rows) body(k, row);
  }
}

/// A thread has its columns of several rows.
template <class T, int kCount>
__global__ void __launch_bounds__(kSwigluThreads)
    forward_kernel(const T* gate_up, T* activation, int64_t rows, int64_t width) {
  using Math = CastMath<T, T>;
  const int64_t column = (int64_t{blockIdx.x} * kSwigluThreads + threadIdx.x) * kCount;
  if (column >= width) return;
  for (int64_t first = blockIdx.y; first < rows; first += int64_t{kSwigluBatch} * gridDim.y) {
    Vector<T, kCount> gates[kSwigluBatch], ups[kSwigluBatch];
    each_row(first, rows, [&](int k, int64_t row) {
      gates[k] = load<kCount>(gate_up + 2 * row * width + column);
      ups[k] = load<kCount>(gate_up + (2 * row + 1) * width + column);
    });
    each_row(first, rows, [&](int k, int64_t row) {
      keep_packed(gates[k]);
      keep_packed(ups[k]);
      for (int e = 0; e < kCount; ++e) {
        const auto gate = static_cast<Math>(gates[k].values[e]);
        ups[k].values[e] =
            static_cast<T>(gate * sigmoid(gate) * static_cast<Math>(ups[k].values[e]));
      }
      store(activation + row * width + column, ups[k]);
    });
  }
}

/// Without `activation`, it is null. A thread reads all of an element before it writes any of it.
template <class T, int kCount>
__global__ void __launch_bounds__(kSwigluThreads) backward_kernel(
    const T* d_activation,
    const T* gate_up,
    T* d_gate_up,
    T* activation,
    int64_t rows,
    int64_t width) {
  using Math = CastMath<T, T>;
  const int64_t column = (int64_t{blockIdx.x} * kSwigluThreads + threadIdx.x) * kCount;
  if (column >= width) return;
  for (int64_t first = blockIdx.y; first < rows; first += int64_t{kSwigluBatch} * gridDim.y) {
    Vector<T, kCount> gates[kSwigluBatch], ups[kSwigluBatch], gradients[kSwigluBatch];
    each_row(first, rows, [&](int k, int64_t row) {
      gradients[k] = load<kCount>(d_activation + row * width + column);
      gates[k] = load<kCount>(gate_up + 2 * row * width + column);
      ups[k] = load<kCount>(gate_up + (2 * row + 1) * width + column);
    });
    each_row(first, rows, [&](int k, int64_t row) {
      keep_packed(gates[k]);
      keep_packed(ups[k]);
      keep_packed(gradients[k]);
      for (int e = 0; e < kCount; ++e) {
        const auto gate = static_cast<Math>(gates[k].values[e]);
        const auto up = static_cast<Math>(ups[k].values[e]);
        const auto gradient = static_cast<Math>(gradients[k].values[e]);
        const Math open = sigmoid(gate);
        const Math silu = gate * open;
        gates[k].values[e] = static_cast<T>(gradient * up * open * (1 + gate - silu));
        ups[k].values[e] = static_cast<T>(gradient * silu);
        gradients[k].values[e] = static_cast<T>(silu * up);
      }
      store(d_gate_up + 2 * row * width + column, gates[k]);
      store(d_gate_up + (2 * row + 1) * width + column, ups[k]);
      if (activation) store(activation + row * width + column, gradients[k]);
    });
  }
}

/// Calls `launch` with how many elements a thread takes at a time, and the grid for it.
template <class T, class Launch>
void with_grid(int64_t rows, int64_t width, std::initializer_list<const T*> all, Launch launch) {
  if (rows == 0 || width == 0) return;
  const auto grid = [&](int64_t count) {
    constexpr int64_t kMost = 65535;
    const int64_t across = (width + count * kSwigluThreads - 1) / (count * kSwigluThreads);
    const int64_t down = std::min((rows + kSwigluBatch - 1) / kSwigluBatch, kMost);
    return dim3(static_cast<unsigned>(across), static_cast<unsigned>(down));
  };
  constexpr int kCount = 16 / sizeof(T);
  const bool wide = width % kCount == 0 && std::all_of(all.begin(), all.end(), [](const T* data) {
                      return reinterpret_cast<uintptr_t>(data) % 16 == 0;
                    });
  if (wide) {
    launch(std::integral_constant<int, kCount>(), grid(kCount));
  } else {
    launch(std::integral_constant<int, 1>(), grid(1));
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

void swiglu_forward_on_cuda(const at::Tensor& gate_up, const at::Tensor& activation) {
  const c10::cuda::CUDAGuard guard(gate_up.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int64_t rows = activation.size(0), width = activation.size(1);
  with_float_type(gate_up.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const auto* from = gate_up.const_data_ptr<T>();
    auto* to = activation.mutable_data_ptr<T>();
    with_grid<T>(rows, width, {from, to}, [&](auto count, dim3 grid) {
      forward_kernel<T, count><<<grid, kSwigluThreads, 0, stream>>>(from, to, rows, width);
    });
  });
}

void swiglu_backward_on_cuda(
    const at::Tensor& d_activation,
    const at::Tensor& gate_up,
    const at::Tensor& d_gate_up,
    const at::Tensor& activation) {
  const c10::cuda::CUDAGuard guard(gate_up.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int64_t rows = d_activation.size(0), width = d_activation.size(1);
  with_float_type(gate_up.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const auto* gradient = d_activation.const_data_ptr<T>();
    const auto* from = gate_up.const_data_ptr<T>();
    auto* to = d_gate_up.mutable_data_ptr<T>();
    auto* again = activation.defined() ? activation.mutable_data_ptr<T>() : nullptr;
    with_grid<T>(rows, width, {gradient, from, to, again}, [&](auto count, dim3 grid) {
      backward_kernel<T, count>
          <<<grid, kSwigluThreads, 0, stream>>>(gradient, from, to, again, rows, width);
    });
  });
}

}  // namespace sherd
