// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cast_types.h"
#include "kernels/vectors.cuh"

namespace sherd {
namespace {

constexpr int kMost = 64;  // copies of one launch: they travel as its argument
constexpr int kCastCopyThreads = 256;
constexpr int kCastCopyVector =
    4;  // elements that a thread moves at a time, where alignment allows

struct Batch {
  CastCopy copies[kMost];
};

template <class Target, class Source>
__device__ void put(Target& target, const Source& source, bool add, double divisor) {
  using Math = CastMath<Target, Source>;
  const Math value = static_cast<Math>(source) / static_cast<Math>(divisor);
  target = cast_to<Target>(add ? static_cast<Math>(target) + value : value);
}

/// blockIdx.y names the copy; the blocks along x share its elements.
template <class Target, class Source>
__global__ void cast_copy_kernel(const Batch batch, double divisor) {
  const CastCopy& one = batch.copies[blockIdx.y];
  auto* target = static_cast<Target*>(one.target);
  const auto* source = static_cast<const Source*>(one.source);
  const int64_t start = static_cast<int64_t>(blockIdx.x) * kCastCopyThreads + threadIdx.x;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kCastCopyThreads;
  const bool aligned =
      reinterpret_cast<uintptr_t>(target) % alignof(Vector<Target, kCastCopyVector>) == 0 &&
      reinterpret_cast<uintptr_t>(source) % alignof(Vector<Source, kCastCopyVector>) == 0;
  const int64_t vectors = aligned ? one.count / kCastCopyVector : 0;
  for (int64_t i = start; i < vectors; i += stride) {
    auto& wide = reinterpret_cast<Vector<Target, kCastCopyVector>*>(target)[i];
    const auto values = reinterpret_cast<const Vector<Source, kCastCopyVector>*>(source)[i];
    Vector<Target, kCastCopyVector> result;
    if (one.add) result = wide;
    for (int k = 0; k < kCastCopyVector; ++k) {
      put(result.values[k], values.values[k], one.add, divisor);
    }
    wide = result;
  }
  for (int64_t i = vectors * kCastCopyVector + start; i < one.count; i += stride) {
    put(target[i], source[i], one.add, divisor);
  }
}

}  // namespace

void cast_copy_on_cuda(
    std::span<const CastCopy> copies, const CastCopyKind& kind, c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);  // the caller may be on another
  constexpr int64_t kMostBlocks = 1024;
  const auto stream = c10::cuda::getCurrentCUDAStream();
  for (size_t begin = 0; begin < copies.size(); begin += kMost) {
    const auto some = copies.subspan(begin, std::min<size_t>(kMost, copies.size() - begin));
    Batch batch;
    int64_t most = 0;
    for (size_t i = 0; i < some.size(); ++i) {
      batch.copies[i] = some[i];
      most = std::max(most, some[i].count);
    }
    if (most == 0) continue;
    constexpr int64_t kPerBlock = kCastCopyThreads * kCastCopyVector;
    const auto blocks =
        static_cast<unsigned>(std::min((most + kPerBlock - 1) / kPerBlock, kMostBlocks));
    const dim3 grid(blocks, static_cast<unsigned>(some.size()));
    with_float_type(kind.target, [&](auto target) {
      with_float_type(kind.source, [&](auto source) {
        cast_copy_kernel<decltype(target), decltype(source)>
            <<<grid, kCastCopyThreads, 0, stream>>>(batch, kind.divisor);
      });
    });
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

}  // namespace sherd
