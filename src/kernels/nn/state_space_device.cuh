// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include "kernels/matrix_tiles.cuh"
#include "kernels/nn/mamba_device.h"

namespace sherd {

constexpr int kSpaceThreads = 256;

/// The sum over lanes that differ in the bits of `lanes`; the same bits in each.
__device__ inline float sum_over(float value, int lanes) {
  for (int bit = 1; bit < kWarp; bit *= 2) {
    if (lanes & bit) value += __shfl_xor_sync(kAllLanes, value, bit);
  }
  return value;
}

/// What a block works on: a chunk of a sequence.
struct ChunkPlace {
  int chunk, sequence, first, valid;  ///< first position, and how many there are

  __device__ ChunkPlace(const DeviceSpace& space, int chunk, int sequence)
      : chunk(chunk), sequence(sequence), first(chunk * kSpaceChunk) {
    valid = min(kSpaceChunk, space.positions - first);
  }
  /// The part of a position that belongs to a head or a group, at the chunk's first position.
  __device__ Bf16* rows(const DeviceRows& of, int part, int width) const {
    return of.data + sequence * of.sequence_stride + first * of.position_stride +
           int64_t{part} * width;
  }
  /// Where a head's steps and decays are.
  __device__ int64_t times(const DeviceSpace& space, int head) const {
    return (int64_t{sequence} * space.heads + head) * space.chunks * kSpaceChunk + first;
  }
  /// A head's state.
  __device__ int64_t state(const DeviceSpace& space, int head) const {
    return ((int64_t{sequence} * space.chunks + chunk) * space.heads + head) * kSpaceDims *
           space.state;
  }
};

/// Begins to copy the numbers of a chunk's positions. By one warp.
__device__ inline void fetch_times(float* target, const float* source) {
  const int lane = threadIdx.x % kWarp;
  __pipeline_memcpy_async(target + 4 * lane, source + 4 * lane, 16);
}

/// A head's values and states in shared memory, while they are fetched and used.
template <int kState>
struct HeadStage {
  using Values = SharedTile<kSpaceChunk, kSpaceDims>;
  using States = SharedTile<kSpaceDims, kState>;
  static constexpr int kBytes = Values::kBytes + States::kBytes + 2 * kSpaceChunk * sizeof(float);

  __device__ explicit HeadStage(char* data)
      : values(data),
        state(data + Values::kBytes),
        steps(reinterpret_cast<float*>(data + Values::kBytes + States::kBytes)),
        decays(steps + kSpaceChunk) {}
  Values values;
  States state;
  float* steps;
  float* decays;
};

/// Launches with as much shared memory as it takes.
template <class... Parameters, class... Arguments>
void launch(
    void (*kernel)(Parameters...),
    dim3 blocks,
    int threads,
    int shared,
    cudaStream_t stream,
    const Arguments&... arguments) {
  cudaLaunchConfig_t how{};
  how.gridDim = blocks;
  how.blockDim = threads;
  how.dynamicSmemBytes = shared;
  how.stream = stream;
  cudaFuncSetAttribute(
      reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  cudaLaunchKernelEx(&how, kernel, arguments...);
}

}  // namespace sherd
