// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdint>

#include "kernels/deposit_types.h"
#include "kernels/vectors.cuh"

namespace sherd {
namespace {

constexpr int kMost = 64;  // deposits of one launch: they travel as its argument
constexpr int kDepositThreads = 256;
constexpr int kDepositVector = 4;  // elements that a thread moves at a time, where alignment allows

struct Batch {
  CastCopy deposits[kMost];
};

template <class Target, class Source>
__device__ void put(Target& target, const Source& source, bool add, double divisor) {
  using Math = DepositMath<Target, Source>;
  const Math value = static_cast<Math>(source) / static_cast<Math>(divisor);
  target = deposit_cast<Target>(add ? static_cast<Math>(target) + value : value);
}

/// blockIdx.y names the deposit; the blocks along x share its elements.
template <class Target, class Source>
__global__ void deposit_kernel(const Batch batch, double divisor) {
  const CastCopy& one = batch.deposits[blockIdx.y];
  auto* target = static_cast<Target*>(one.target);
  const auto* source = static_cast<const Source*>(one.source);
  const int64_t start = static_cast<int64_t>(blockIdx.x) * kDepositThreads + threadIdx.x;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kDepositThreads;
  const bool aligned =
      reinterpret_cast<uintptr_t>(target) % alignof(Vector<Target, kDepositVector>) == 0 &&
      reinterpret_cast<uintptr_t>(source) % alignof(Vector<Source, kDepositVector>) == 0;
  const int64_t vectors = aligned ? one.count / kDepositVector : 0;
  for (int64_t i = start; i < vectors; i += stride) {
    auto& wide = reinterpret_cast<Vector<Target, kDepositVector>*>(target)[i];
    const auto values = reinterpret_cast<const Vector<Source, kDepositVector>*>(source)[i];
    Vector<Target, kDepositVector> result;
    if (one.add) result = wide;
    for (int k = 0; k < kDepositVector; ++k) {
      put(result.values[k], values.values[k], one.add, divisor);
    }
    wide = result;
  }
  for (int64_t i = vectors * kDepositVector + start; i < one.count; i += stride) {
    put(target[i], source[i], one.add, divisor);
  }
}

}  // namespace

void deposit_on_cuda(
    std::span<const CastCopy> deposits, const CastCopyKind& kind, c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);  // the caller may be on another
  constexpr int64_t kMostBlocks = 1024;
  const auto stream = c10::cuda::getCurrentCUDAStream();
  for (size_t begin = 0; begin < deposits.size(); begin += kMost) {
    const auto some = deposits.subspan(begin, std::min<size_t>(kMost, deposits.size() - begin));
    Batch batch;
    int64_t most = 0;
    for (size_t i = 0; i < some.size(); ++i) {
      batch.deposits[i] = some[i];
      most = std::max(most, some[i].count);
    }
    if (most == 0) continue;
    constexpr int64_t kPerBlock = kDepositThreads * kDepositVector;
    const auto blocks =
        static_cast<unsigned>(std::min((most + kPerBlock - 1) / kPerBlock, kMostBlocks));
    const dim3 grid(blocks, static_cast<unsigned>(some.size()));
    with_deposit_type(kind.target, [&](auto target) {
      with_deposit_type(kind.source, [&](auto source) {
        deposit_kernel<decltype(target), decltype(source)>
            <<<grid, kDepositThreads, 0, stream>>>(batch, kind.divisor);
      });
    });
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

}  // namespace sherd
