// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/deposit_types.h"
#include "kernels/measure_math.h"

namespace sherd {
namespace {

constexpr int kThreads = 256;

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
  __shared__ double sums[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_down_sync(0xffffffffu, value, offset);
  }
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  double total = 0;
  if (threadIdx.x == 0) {
    for (int warp = 0; warp < kThreads / 32; ++warp) total += sums[warp];
  }
  return total;
}

template <class T>
__device__ double squares(const void* data, int64_t begin, int32_t count) {
  const auto* values = static_cast<const T*>(data) + begin;
  // Four sums: the additions of one would wait for each other.
  double sums[4] = {};
  int32_t i = threadIdx.x;
  for (; i + 3 * kThreads < count; i += 4 * kThreads) {
    for (int k = 0; k < 4; ++k) {
      const auto value = static_cast<double>(static_cast<float>(values[i + k * kThreads]));
      sums[k] += value * value;
    }
  }
  for (; i < count; i += kThreads) {
    const auto value = static_cast<double>(static_cast<float>(values[i]));
    sums[0] += value * value;
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <>
__device__ double squares<double>(const void* data, int64_t begin, int32_t count) {
  const auto* values = static_cast<const double*>(data) + begin;
  double sum = 0;
  for (int32_t i = threadIdx.x; i < count; i += kThreads) sum += values[i] * values[i];
  return sum;
}

__global__ void measure_chunks(const RunView* runs, const Chunk* chunks, double* partial) {
  const Chunk chunk = chunks[blockIdx.x];
  const RunView& run = runs[chunk.run];
  double sum = 0;
  switch (static_cast<c10::ScalarType>(run.dtype)) {
    case c10::ScalarType::Float: sum = squares<float>(run.values, chunk.begin, chunk.count); break;
    case c10::ScalarType::Half:
      sum = squares<c10::Half>(run.values, chunk.begin, chunk.count);
      break;
    case c10::ScalarType::BFloat16:
      sum = squares<c10::BFloat16>(run.values, chunk.begin, chunk.count);
      break;
    default: sum = squares<double>(run.values, chunk.begin, chunk.count);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void join_chunks(
    const RunView* runs, const double* partial, double* sums, Watched* watched, Look look) {
  const RunView& run = runs[blockIdx.x];
  double sum = 0;
  for (int32_t i = threadIdx.x; i < run.chunks; i += kThreads) sum += partial[run.first_chunk + i];
  sum = block_sum(sum);
  if (threadIdx.x != 0) return;
  sums[blockIdx.x] = sum;
  if (watched) judge(watched[blockIdx.x], sum, look);
}

}  // namespace

void measure_on_cuda(
    const Measurement& measurement, double* sums, Watched* watched, const Look& look) {
  static_assert(sizeof(RunView) == sizeof(Measurement::Run));
  if (measurement.runs_.empty()) return;
  const c10::cuda::CUDAGuard guard(measurement.device_);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const auto* runs = static_cast<const RunView*>(measurement.device_runs_.const_data_ptr());
  auto* partial = measurement.partial_.mutable_data_ptr<double>();
  if (measurement.chunk_count_ > 0) {
    const auto* chunks = static_cast<const Chunk*>(measurement.device_chunks_.const_data_ptr());
    measure_chunks<<<static_cast<unsigned>(measurement.chunk_count_), kThreads, 0, stream>>>(
        runs, chunks, partial);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
  join_chunks<<<static_cast<unsigned>(measurement.runs_.size()), kThreads, 0, stream>>>(
      runs, partial, sums, watched, look);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace sherd
