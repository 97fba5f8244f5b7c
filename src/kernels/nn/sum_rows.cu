// SPDX-License-Identifier: Apache-2.0
#include "kernels/nn/sum_rows.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cast_types.h"
#include "kernels/vectors.cuh"

namespace sherd {
namespace {

constexpr int kSumRowsThreads = 256;

/// Blocks along y take the tokens in turn; a thread has some columns of a token.
template <class T, class Result, int kCount>
__global__ void __launch_bounds__(kSumRowsThreads) sum_rows_kernel(
    const T* rows,
    const int32_t* indices,
    const Result* summand,
    Result* result,
    int64_t tokens,
    int64_t count,
    int64_t dim) {
  using Math = CastMath<Result, T>;
  const int64_t column = (int64_t{blockIdx.x} * kSumRowsThreads + threadIdx.x) * kCount;
  if (column >= dim) return;
  for (int64_t token = blockIdx.y; token < tokens; token += gridDim.y) {
    Math sums[kCount] = {};
    if (summand) {
      const auto more =
          *reinterpret_cast<const Vector<Result, kCount>*>(summand + token * dim + column);
      for (int e = 0; e < kCount; ++e) sums[e] = static_cast<Math>(more.values[e]);
    }
    for (int64_t k = 0; k < count; ++k) {
      const auto row = load<kCount>(rows + indices[token * count + k] * dim + column);
      for (int e = 0; e < kCount; ++e) sums[e] += static_cast<Math>(row.values[e]);
    }
    Vector<Result, kCount> out;
    for (int e = 0; e < kCount; ++e) out.values[e] = cast_to<Result>(sums[e]);
    *reinterpret_cast<Vector<Result, kCount>*>(result + token * dim + column) = out;
  }
}

}  // namespace

void sum_rows_on_cuda(const RowSums& work) {
  const c10::cuda::CUDAGuard guard(work.rows.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int64_t tokens = work.indices.size(0), count = work.indices.size(1);
  const int64_t dim = work.rows.size(1);
  if (tokens == 0 || dim == 0) return;
  with_float_type(work.rows.scalar_type(), [&](auto type) {
    with_float_type(work.result.scalar_type(), [&](auto target) {
      using T = decltype(type);
      using Result = decltype(target);
      const auto* rows = work.rows.const_data_ptr<T>();
      const auto* summand =
          work.summand.defined() ? work.summand.const_data_ptr<Result>() : nullptr;
      auto* result = work.result.mutable_data_ptr<Result>();
      const auto is_aligned = [](const void* data) {
        return reinterpret_cast<uintptr_t>(data) % 16 == 0;
      };
      const auto launch = [&]<int kCount>(std::integral_constant<int, kCount>) {
        constexpr int64_t kColumns = kSumRowsThreads * kCount;
        constexpr int64_t kMost = 65535;
        const dim3 grid(
            static_cast<unsigned>((dim + kColumns - 1) / kColumns),
            static_cast<unsigned>(std::min(tokens, kMost)));
        sum_rows_kernel<T, Result, kCount><<<grid, kSumRowsThreads, 0, stream>>>(
            rows, work.indices.const_data_ptr<int32_t>(), summand, result, tokens, count, dim);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
      };
      constexpr int kCount = 8;  // a whole number of 16 bytes, whatever the dtypes
      if (dim % kCount == 0 && is_aligned(rows) && is_aligned(summand) && is_aligned(result)) {
        launch(std::integral_constant<int, kCount>());
      } else {
        launch(std::integral_constant<int, 1>());
      }
    });
  });
}

}  // namespace sherd
