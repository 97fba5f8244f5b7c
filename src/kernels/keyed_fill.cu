// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "kernels/cast_types.h"
#include "kernels/keyed_math.h"

namespace sherd {
namespace {

constexpr int kKeyedFillThreads = 256;

template <class T>
__global__ void fill_kernel(const KeyedRun run) {
  auto* target = static_cast<T*>(run.data);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kKeyedFillThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kKeyedFillThreads + threadIdx.x;
       i < run.count; i += stride) {
    target[i] = cast_to<T>(keyed_value(run.key, run.begin + i, run.values));
  }
}

}  // namespace

void fill_keyed_on_cuda(const KeyedRun& run, c10::Device device) {
  if (run.count == 0) return;
  constexpr int64_t kMostBlocks = 4096;
  const c10::cuda::CUDAGuard guard(device);
  const auto blocks = static_cast<unsigned>(
      std::min((run.count + kKeyedFillThreads - 1) / kKeyedFillThreads, kMostBlocks));
  with_float_type(run.dtype, [&](auto type) {
    fill_kernel<decltype(type)>
        <<<blocks, kKeyedFillThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(run);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

}  // namespace sherd
