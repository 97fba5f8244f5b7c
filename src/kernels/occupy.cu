// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdint>

#include "kernels/occupy.h"

namespace sherd {
namespace {

__device__ int64_t nanoseconds() {
  int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void note_time_kernel(int64_t* clock) {
  *clock = nanoseconds();
}

__global__ void occupy_kernel(const int64_t* clock, int64_t duration) {
  const int64_t end = *clock + duration;
  while (nanoseconds() < end) __nanosleep(100);
}

}  // namespace

void note_time(const at::Tensor& clock, c10::Stream stream) {
  note_time_kernel<<<1, 1, 0, c10::cuda::CUDAStream(stream)>>>(clock.mutable_data_ptr<int64_t>());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void occupy_until(const at::Tensor& clock, double seconds, int sms, c10::Stream stream) {
  // One block takes most of an SM's shared memory, so no two share an SM, and hardly anything else
  // fits beside one.
  constexpr int kSharedBytes = 200 << 10;
  C10_CUDA_CHECK(cudaFuncSetAttribute(
      occupy_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  occupy_kernel<<<std::max(sms, 1), 32, kSharedBytes, c10::cuda::CUDAStream(stream)>>>(
      clock.const_data_ptr<int64_t>(), static_cast<int64_t>(seconds * 1e9));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace sherd
