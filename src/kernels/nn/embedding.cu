// SPDX-License-Identifier: Apache-2.0
#include "kernels/nn/embedding.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cast_types.h"
#include "kernels/vectors.cuh"

namespace sherd {
namespace {

constexpr int kEmbeddingThreads = 128;
constexpr int kEmbeddingBatch = 4;  // rows whose loads are under way at a time

/// blockIdx.x is a place among the sorted tokens. The block at a token's first place adds up all of
/// its rows; the others have nothing to do. Blocks along y share the columns.
template <class T, class Target, int kCount>
__global__ void __launch_bounds__(kEmbeddingThreads) embedding_kernel(
    const T* gradient,
    const int64_t* sorted,
    const int64_t* order,
    int64_t count,
    int64_t dim,
    Target* target,
    bool add) {
  using Math = CastMath<T, T>;
  const int64_t first = blockIdx.x;
  const int64_t token = sorted[first];
  const int64_t column = (int64_t{blockIdx.y} * kEmbeddingThreads + threadIdx.x) * kCount;
  if (column >= dim || (first > 0 && sorted[first - 1] == token)) return;
  Math sums[kCount] = {};
  bool more = true;
  for (int64_t i = first; more; i += kEmbeddingBatch) {
    Vector<T, kCount> batch[kEmbeddingBatch];
    bool mine[kEmbeddingBatch];
#pragma unroll
    for (int k = 0; k < kEmbeddingBatch; ++k) {
      mine[k] = i + k < count && sorted[i + k] == token;
      if (!mine[k]) continue;
      batch[k] = load<kCount>(gradient + order[i + k] * dim + column);
    }
#pragma unroll
    for (int k = 0; k < kEmbeddingBatch; ++k) {
      if (!mine[k]) continue;
      for (int e = 0; e < kCount; ++e) sums[e] += static_cast<Math>(batch[k].values[e]);
    }
    more = mine[kEmbeddingBatch - 1];
  }
  auto& place = *reinterpret_cast<Vector<Target, kCount>*>(target + token * dim + column);
  Vector<Target, kCount> result;
  if (add) result = place;
  for (int e = 0; e < kCount; ++e) {
    auto value = static_cast<CastMath<T, Target>>(sums[e]);
    if (add) value += static_cast<CastMath<T, Target>>(result.values[e]);
    result.values[e] = cast_to<Target>(value);
  }
  place = result;
}

}  // namespace

void embedding_gradient_on_cuda(
    const EmbeddingGradient& work, const at::Tensor& sorted, const at::Tensor& order) {
  const c10::cuda::CUDAGuard guard(work.gradient.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int64_t count = sorted.numel();
  const int64_t dim = work.gradient.size(1);
  const auto is_aligned = [](const at::Tensor& x) {
    return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
  };
  with_float_type(work.gradient.scalar_type(), [&](auto type) {
    with_float_type(work.target.scalar_type(), [&](auto target) {
      using T = decltype(type);
      using Target = decltype(target);
      const auto launch = [&]<int kCount>(std::integral_constant<int, kCount>) {
        constexpr int64_t kColumns = kEmbeddingThreads * kCount;
        const dim3 grid(
            static_cast<unsigned>(count), static_cast<unsigned>((dim + kColumns - 1) / kColumns));
        embedding_kernel<T, Target, kCount><<<grid, kEmbeddingThreads, 0, stream>>>(
            work.gradient.const_data_ptr<T>(), sorted.const_data_ptr<int64_t>(),
            order.const_data_ptr<int64_t>(), count, dim, work.target.mutable_data_ptr<Target>(),
            work.add);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
      };
      constexpr int kCount = 8;  // a whole number of 16 bytes, whatever the dtypes
      if (dim % kCount == 0 && is_aligned(work.gradient) && is_aligned(work.target)) {
        launch(std::integral_constant<int, kCount>());
      } else {
        launch(std::integral_constant<int, 1>());
      }
    });
  });
}

}  // namespace sherd
