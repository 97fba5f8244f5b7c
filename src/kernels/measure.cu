// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/cast_types.h"
#include "kernels/measure_math.h"

namespace sherd {
namespace {

constexpr int kMeasureThreads = 256;

/// A run as the kernels see it.
struct RunView {
  const void* values;
  int64_t count;
  int32_t dtype;
  int32_t first_chunk;
  int32_t chunks;
};

/// The sum over the block's threads, always in the same order; in thread 0.
__device__ double block_sum(double value) {
  __shared__ double sums[kMeasureThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_down_sync(0xffffffffu, value, offset);
  }
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  double total = 0;
  if (threadIdx.x == 0) {
    for (int warp = 0; warp < kMeasureThreads / 32; ++warp) total += sums[warp];
  }
  return total;
}

template <class T>
__device__ double squares(const void* data, int64_t begin, int32_t count) {
  const auto* values = static_cast<const T*>(data) + begin;
  // Four sums: the additions of one would wait for each other.
  double sums[4] = {};
  int32_t i = threadIdx.x;
  for (; i + 3 * kMeasureThreads < count; i += 4 * kMeasureThreads) {
    for (int k = 0; k < 4; ++k) {
      const auto value = static_cast<double>(static_cast<float>(values[i + k * kMeasureThreads]));
      sums[k] += value * value;
    }
  }
  for (; i < count; i += kMeasureThreads) {
    const auto value = static_cast<double>(static_cast<float>(values[i]));
    sums[0] += value * value;
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <>
__device__ double squares<double>(const void* data, int64_t begin, int32_t count) {
  const auto* values = static_cast<const double*>(data) + begin;
  double sum = 0;
  for (int32_t i = threadIdx.x; i < count; i += kMeasureThreads) sum += values[i] * values[i];
  return sum;
}

__device__ double squares_of(const RunView& run, const Chunk& chunk) {
  switch (static_cast<c10::ScalarType>(run.dtype)) {
    case c10::ScalarType::Float: return squares<float>(run.values, chunk.begin, chunk.count);
    case c10::ScalarType::Half: return squares<c10::Half>(run.values, chunk.begin, chunk.count);
    case c10::ScalarType::BFloat16:
      return squares<c10::BFloat16>(run.values, chunk.begin, chunk.count);
    default: return squares<double>(run.values, chunk.begin, chunk.count);
  }
}

/// A block per chunk; the last one of a tensor adds up what the others found.
__global__ void measure_kernel(
    const RunView* runs,
    const Chunk* chunks,
    double* partial,
    int* arrived,
    double* sums,
    Watched* watched,
    Look look) {
  const Chunk chunk = chunks[blockIdx.x];
  const RunView run = runs[chunk.run];
  const double mine = block_sum(squares_of(run, chunk));
  __shared__ bool last;
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = mine;
    __threadfence();
    last = atomicAdd(&arrived[chunk.run], 1) == run.chunks - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  double sum = 0;
  for (int32_t i = threadIdx.x; i < run.chunks; i += kMeasureThreads) {
    sum += __ldcg(&partial[run.first_chunk + i]);
  }
  sum = block_sum(sum);
  if (threadIdx.x != 0) return;
  arrived[chunk.run] = 0;
  sums[chunk.run] = sum;
  if (watched) judge(watched[chunk.run], sum, look);
}

}  // namespace

void measure_on_cuda(
    const Measurement& measurement, double* sums, Watched* watched, const Look& look) {
  static_assert(sizeof(RunView) == sizeof(Measurement::Run));
  if (measurement.runs_.empty()) return;
  const c10::cuda::CUDAGuard guard(measurement.device_);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const auto* runs = static_cast<const RunView*>(measurement.device_runs_.const_data_ptr());
  const auto* chunks = static_cast<const Chunk*>(measurement.device_chunks_.const_data_ptr());
  measure_kernel<<<static_cast<unsigned>(measurement.chunk_count_), kMeasureThreads, 0, stream>>>(
      runs, chunks, measurement.partial_.mutable_data_ptr<double>(),
      measurement.arrived_.mutable_data_ptr<int>(), sums, watched, look);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace sherd
