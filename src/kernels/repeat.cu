// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdint>

#include "kernels/repeat.h"

namespace sherd {
namespace {

constexpr int kRepeatThreads = 256;

/// Each element is read once and written to every copy.
template <class Word>
__global__ void repeat_kernel(Word* target, const Word* source, int64_t words, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kRepeatThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kRepeatThreads + threadIdx.x; i < words;
       i += stride) {
    const Word word = source[i];
    for (int64_t copy = 0; copy < count; ++copy) {
      auto* place = target + copy * words;
      if (place != source) place[i] = word;
    }
  }
}

template <class Word>
void launch(void* target, const void* source, int64_t bytes, int64_t count) {
  constexpr int64_t kMostBlocks = 2048;
  const int64_t words = bytes / static_cast<int64_t>(sizeof(Word));
  const auto blocks = std::min((words + kRepeatThreads - 1) / kRepeatThreads, kMostBlocks);
  repeat_kernel<<<
      static_cast<unsigned>(blocks), kRepeatThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
      static_cast<Word*>(target), static_cast<const Word*>(source), words, count);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

void repeat_on_cuda(
    void* target, const void* source, int64_t bytes, int64_t count, c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  const auto where = reinterpret_cast<uintptr_t>(target) | reinterpret_cast<uintptr_t>(source);
  const auto all = where | static_cast<uintptr_t>(bytes);
  if (all % sizeof(uint4) == 0) {
    launch<uint4>(target, source, bytes, count);
  } else if (all % sizeof(uint32_t) == 0) {
    launch<uint32_t>(target, source, bytes, count);
  } else {
    launch<uint8_t>(target, source, bytes, count);
  }
}

}  // namespace sherd
