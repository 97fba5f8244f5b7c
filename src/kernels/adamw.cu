// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

#include "kernels/adamw_math.h"
#include "kernels/vectors.cuh"

namespace sherd {
namespace {

constexpr int kAdamwThreads = 256;
constexpr int kAdamwVector = 4;

template <class T>
__device__ bool is_aligned(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % alignof(Vector<T, kAdamwVector>) == 0;
}

/// What a pass reads and writes, from one element on. Without a model weight, it is null.
template <class W, class G, class S, class M>
struct Arrays {
  W* weight;
  const G* gradient;
  S* first;
  S* second;
  M* model;

  __device__ bool are_aligned() const {
    return is_aligned(weight) && is_aligned(gradient) && is_aligned(first) && is_aligned(second) &&
           is_aligned(model);
  }
};

/// Updates the elements from i on: as many as a vector has, or one.
template <int kCount, class W, class G, class S, class M>
__device__ void update(const AdamWStep& step, const Arrays<W, G, S, M>& at, int64_t i) {
  auto weights = *reinterpret_cast<const Vector<W, kCount>*>(at.weight + i);
  const auto gradients = *reinterpret_cast<const Vector<G, kCount>*>(at.gradient + i);
  auto firsts = *reinterpret_cast<const Vector<S, kCount>*>(at.first + i);
  auto seconds = *reinterpret_cast<const Vector<S, kCount>*>(at.second + i);
  Vector<M, kCount> models;
  for (int k = 0; k < kCount; ++k) {
    auto weight = static_cast<float>(weights.values[k]);
    auto first = static_cast<float>(firsts.values[k]);
    auto second = static_cast<float>(seconds.values[k]);
    adamw_element(step, weight, static_cast<float>(gradients.values[k]), first, second);
    weights.values[k] = static_cast<W>(weight);
    firsts.values[k] = static_cast<S>(first);
    seconds.values[k] = static_cast<S>(second);
    models.values[k] = static_cast<M>(weight);
  }
  *reinterpret_cast<Vector<W, kCount>*>(at.weight + i) = weights;
  *reinterpret_cast<Vector<S, kCount>*>(at.first + i) = firsts;
  *reinterpret_cast<Vector<S, kCount>*>(at.second + i) = seconds;
  if (at.model) *reinterpret_cast<Vector<M, kCount>*>(at.model + i) = models;
}

template <class W, class G, class S, class M>
__global__ void adamw_kernel(
    const AdamWPass::Run* runs, const Chunk* chunks, const double* fields) {
  if (fields[control::skip] != 0) return;
  const Chunk chunk = chunks[blockIdx.x];
  const auto& run = runs[chunk.run];
  __shared__ AdamWStep shared;
  if (threadIdx.x == 0) shared = adamw_step(run.settings, fields);
  __syncthreads();
  const AdamWStep step = shared;
  const Arrays<W, G, S, M> at{
      static_cast<W*>(run.weight) + chunk.begin, static_cast<const G*>(run.gradient) + chunk.begin,
      static_cast<S*>(run.first) + chunk.begin, static_cast<S*>(run.second) + chunk.begin,
      run.model ? static_cast<M*>(run.model) + chunk.begin : nullptr};
  const int32_t vectors = at.are_aligned() ? chunk.count / kAdamwVector : 0;
  for (int32_t i = threadIdx.x; i < vectors; i += kAdamwThreads) {
    update<kAdamwVector>(step, at, static_cast<int64_t>(i) * kAdamwVector);
  }
  for (int32_t i = vectors * kAdamwVector + threadIdx.x; i < chunk.count; i += kAdamwThreads) {
    update<1>(step, at, i);
  }
}

__global__ void advance_kernel(
    double* fields, const double* sums, int64_t count, const ControlRules rules) {
  advance(fields, sums, count, rules);
}

template <class Visitor>
void with_type(c10::ScalarType dtype, Visitor visitor) {
  switch (dtype) {
    case c10::ScalarType::BFloat16: return visitor(c10::BFloat16{});
    case c10::ScalarType::Half: return visitor(c10::Half{});
    default: return visitor(float{});
  }
}

}  // namespace

void adamw_on_cuda(const AdamWPass::Batch& batch, const double* fields, c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const auto* runs = static_cast<const AdamWPass::Run*>(batch.device_runs.const_data_ptr());
  const auto* chunks = static_cast<const Chunk*>(batch.device_chunks.const_data_ptr());
  const auto blocks = static_cast<unsigned>(batch.chunks);
  with_type(batch.dtypes.weight, [&](auto weight) {
    with_type(batch.dtypes.gradient, [&](auto gradient) {
      with_type(batch.dtypes.model, [&](auto model) {
        using W = decltype(weight);
        using G = decltype(gradient);
        using M = decltype(model);
        if (batch.dtypes.state == c10::ScalarType::BFloat16) {
          adamw_kernel<W, G, c10::BFloat16, M>
              <<<blocks, kAdamwThreads, 0, stream>>>(runs, chunks, fields);
        } else {
          adamw_kernel<W, G, float, M><<<blocks, kAdamwThreads, 0, stream>>>(runs, chunks, fields);
        }
        C10_CUDA_KERNEL_LAUNCH_CHECK();
      });
    });
  });
}

void advance_control_on_cuda(
    double* fields,
    const double* sums,
    int64_t count,
    const ControlRules& rules,
    c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  advance_kernel<<<1, 1, 0, c10::cuda::getCurrentCUDAStream()>>>(fields, sums, count, rules);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace sherd
