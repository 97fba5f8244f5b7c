// SPDX-License-Identifier: Apache-2.0
#include "kernels/nn/cross_entropy.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cast_types.h"
#include "kernels/vectors.cuh"

namespace sherd {
namespace {

constexpr int kCrossEntropyThreads =
    1024;                              // few rows at a time: the second look at one finds it in L2
constexpr int kCrossEntropyBatch = 4;  // vectors of a thread whose loads are under way at a time

__device__ float power(float x) {
  return __expf(x);
}
__device__ double power(double x) {
  return exp(x);
}
__device__ float logarithm(float x) {
  return logf(x);
}
__device__ double logarithm(double x) {
  return log(x);
}

/// Σ exp(values) as exp(most) · sum.
template <class Math>
struct Sum {
  Math most = std::numeric_limits<Math>::lowest();  // not −∞: its distance to itself is a number
  Math sum = 0;

  __device__ void take(Math other_most, Math other_sum) {
    const Math larger = most > other_most ? most : other_most;
    sum = sum * power(most - larger) + other_sum * power(other_most - larger);
    most = larger;
  }
};

/// Over the block's threads, in an order that never changes; the same bits in each of them.
template <class Math>
__device__ Sum<Math> block_sum(Sum<Math> mine) {
  __shared__ Math mosts[kCrossEntropyThreads / kWarp], sums[kCrossEntropyThreads / kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Math most = __shfl_xor_sync(0xffffffffu, mine.most, offset);
    const Math sum = __shfl_xor_sync(0xffffffffu, mine.sum, offset);
    mine.take(most, sum);
  }
  if (threadIdx.x % kWarp == 0) {
    mosts[threadIdx.x / kWarp] = mine.most;
    sums[threadIdx.x / kWarp] = mine.sum;
  }
  __syncthreads();
  Sum<Math> all;
  for (int warp = 0; warp < kCrossEntropyThreads / kWarp; ++warp) all.take(mosts[warp], sums[warp]);
  return all;
}

/// body(vector, column) for this thread's part of a row: 16-byte vectors, and single elements
/// before the first and after the last of them. What body makes of them is written back, if so.
template <bool kWrites, class T, class Body>
__device__ void each_in_row(T* row, int vocab, Body body) {
  constexpr int kCount = 16 / sizeof(T);
  using Wide = Vector<T, kCount>;
  const int off = static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
  const int begin = min(vocab, (kCount - off) % kCount);
  const int vectors = (vocab - begin) / kCount;
  auto* wide = reinterpret_cast<Wide*>(row + begin);
  for (int first = threadIdx.x; first < vectors;
       first += kCrossEntropyBatch * kCrossEntropyThreads) {
    Wide batch[kCrossEntropyBatch];
#pragma unroll
    for (int k = 0; k < kCrossEntropyBatch; ++k) {
      if (first + k * kCrossEntropyThreads < vectors)
        batch[k] = wide[first + k * kCrossEntropyThreads];
    }
#pragma unroll
    for (int k = 0; k < kCrossEntropyBatch; ++k) {
      const int i = first + k * kCrossEntropyThreads;
      if (i >= vectors) continue;
      keep_packed(batch[k]);
      body(batch[k], begin + i * kCount);
      if (kWrites) store(wide[i].values, batch[k]);
    }
  }
  const int singles = vocab - vectors * kCount;
  for (int i = threadIdx.x; i < singles; i += kCrossEntropyThreads) {
    const int column = i < begin ? i : i + vectors * kCount;
    Vector<T, 1> one{row[column]};
    body(one, column);
    if (kWrites) row[column] = one.values[0];
  }
}

template <class T, class Math>
__device__ Sum<Math> row_sum(T* row, int vocab) {
  Sum<Math> mine;
  each_in_row<false>(row, vocab, [&]<int kCount>(const Vector<T, kCount>& vector, int) {
    Math most = static_cast<Math>(vector.values[0]);
    for (int e = 1; e < kCount; ++e) {
      const auto value = static_cast<Math>(vector.values[e]);
      most = value > most ? value : most;
    }
    most = most > mine.most ? most : mine.most;
    Math sum = 0;
    for (int e = 0; e < kCount; ++e) sum += power(static_cast<Math>(vector.values[e]) - most);
    mine.sum = mine.sum * power(mine.most - most) + sum;
    mine.most = most;
  });
  return block_sum(mine);
}

template <class T, class Math>
__device__ void write_gradients(T* row, int vocab, int64_t target, Math log_sum, Math factor) {
  each_in_row<true>(row, vocab, [&]<int kCount>(Vector<T, kCount>& vector, int column) {
    for (int e = 0; e < kCount; ++e) {
      Math value = power(static_cast<Math>(vector.values[e]) - log_sum);
      if (column + e == target) value -= 1;
      vector.values[e] = target < 0 ? T(0) : static_cast<T>(value * factor);
    }
  });
}

/// A block per row.
template <class T, class Math>
__global__ void __launch_bounds__(kCrossEntropyThreads) forward_kernel(
    T* logits,
    const int64_t* targets,
    Math* losses,
    Math* log_sums,
    int vocab,
    bool into_gradients) {
  T* row = logits + blockIdx.x * static_cast<int64_t>(vocab);
  const int64_t target = targets[blockIdx.x];
  CUDA_KERNEL_ASSERT(target < vocab);
  // Before the threads meet: after that, the row may be written.
  const Math chosen = target < 0 ? Math(0) : static_cast<Math>(row[target]);
  const auto sum = row_sum<T, Math>(row, vocab);
  const Math log_sum = sum.most + logarithm(sum.sum);
  if (threadIdx.x == 0) {
    log_sums[blockIdx.x] = log_sum;
    losses[blockIdx.x] = target < 0 ? Math(0) : log_sum - chosen;
  }
  if (into_gradients) write_gradients(row, vocab, target, log_sum, Math(1));
}

template <class T, class Math>
__global__ void __launch_bounds__(kCrossEntropyThreads) backward_kernel(
    T* logits, const int64_t* targets, const Math* log_sums, const Math* factor, int vocab) {
  T* row = logits + blockIdx.x * static_cast<int64_t>(vocab);
  write_gradients(row, vocab, targets[blockIdx.x], log_sums[blockIdx.x], *factor);
}

}  // namespace

void cross_entropy_forward_on_cuda(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const at::Tensor& losses,
    const at::Tensor& log_sums,
    bool into_gradients) {
  if (logits.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(logits.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  with_float_type(logits.scalar_type(), [&](auto type) {
    using T = decltype(type);
    using Math = CastMath<T, T>;
    forward_kernel<T, Math>
        <<<static_cast<unsigned>(logits.size(0)), kCrossEntropyThreads, 0, stream>>>(
            logits.mutable_data_ptr<T>(), targets.const_data_ptr<int64_t>(),
            losses.mutable_data_ptr<Math>(), log_sums.mutable_data_ptr<Math>(),
            static_cast<int>(logits.size(1)), into_gradients);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

void cross_entropy_backward_on_cuda(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const at::Tensor& log_sums,
    const at::Tensor& factor) {
  if (logits.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(logits.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  with_float_type(logits.scalar_type(), [&](auto type) {
    using T = decltype(type);
    using Math = CastMath<T, T>;
    backward_kernel<T, Math>
        <<<static_cast<unsigned>(logits.size(0)), kCrossEntropyThreads, 0, stream>>>(
            logits.mutable_data_ptr<T>(), targets.const_data_ptr<int64_t>(),
            log_sums.const_data_ptr<Math>(), factor.const_data_ptr<Math>(),
            static_cast<int>(logits.size(1)));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

}  // namespace sherd
