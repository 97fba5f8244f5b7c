// SPDX-License-Identifier: Apache-2.0
#include "kernels/nn/rope.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cast_types.h"
#include "kernels/vectors.cuh"

namespace sherd {
namespace {

constexpr int kRopeThreads = 128;
constexpr int kRopeBatch = 4;  // heads of a thread whose loads are under way at a time

/// Heads in memory: where each begins.
template <class T>
struct Heads {
  T* data;
  int64_t batch;  // strides
  int64_t position;
  int64_t head;
};

template <class T>
struct Turn {
  Heads<const T> source;
  Heads<T> target;
  const float* cosine;
  const float* sine;
  int heads;
  int half;
  bool back;
};

/// body(k, h) for the heads that a thread turns together.
template <class Body>
__device__ void each_head(int first, int heads, Body body) {
#pragma unroll
  for (int k = 0; k < kRopeBatch; ++k) {
    const int head = first + k * blockDim.y;
    if (head < heads) body(k, head);
  }
}

/// A block per position, blockIdx.y the sequence. Threads along x share the dims of half a head and
/// keep their angles; those along y share the heads.
template <class T, int kCount>
__global__ void __launch_bounds__(kRopeThreads) rope_kernel(const Turn<T> turn) {
  using Math = CastMath<T, T>;
  const int64_t position = blockIdx.x;
  const int64_t batch = blockIdx.y;
  const auto* source =
      turn.source.data + batch * turn.source.batch + position * turn.source.position;
  auto* target = turn.target.data + batch * turn.target.batch + position * turn.target.position;
  for (int i = threadIdx.x * kCount; i < turn.half; i += blockDim.x * kCount) {
    const int64_t angle = position * turn.half + i;
    const auto cosine = load<kCount>(turn.cosine + angle);
    auto sine = load<kCount>(turn.sine + angle);
    if (turn.back) {
      for (int e = 0; e < kCount; ++e) sine.values[e] = -sine.values[e];
    }
    for (int head = threadIdx.y; head < turn.heads; head += kRopeBatch * blockDim.y) {
      Vector<T, kCount> first[kRopeBatch], second[kRopeBatch];
      each_head(head, turn.heads, [&](int k, int h) {
        const auto* from = source + h * turn.source.head + i;
        first[k] = load<kCount>(from);
        second[k] = load<kCount>(from + turn.half);
      });
      each_head(head, turn.heads, [&](int k, int h) {
        keep_packed(first[k]);
        keep_packed(second[k]);
        for (int e = 0; e < kCount; ++e) {
          const auto a = static_cast<Math>(first[k].values[e]);
          const auto b = static_cast<Math>(second[k].values[e]);
          first[k].values[e] = static_cast<T>(a * cosine.values[e] - b * sine.values[e]);
          second[k].values[e] = static_cast<T>(b * cosine.values[e] + a * sine.values[e]);
        }
        auto* to = target + h * turn.target.head + i;
        store(to, first[k]);
        store(to + turn.half, second[k]);
      });
    }
  }
}

bool is_aligned(const at::Tensor& x, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % bytes == 0;
}

/// Whether half heads begin and end at multiples of 16 bytes.
bool has_vectors(const at::Tensor& x) {
  const int64_t count = 16 / static_cast<int64_t>(x.element_size());
  const auto whole = [&](int64_t elements) { return elements % count == 0; };
  return is_aligned(x, 16) && whole(x.stride(0)) && whole(x.stride(1)) && whole(x.stride(2)) &&
         whole(x.size(3) / 2);
}

template <class T, int kCount>
void launch(const RopeWork& work, cudaStream_t stream) {
  const auto& source = work.source;
  const auto& target = work.target;
  const Turn<T> turn{
      {source.const_data_ptr<T>(), source.stride(0), source.stride(1), source.stride(2)},
      {target.mutable_data_ptr<T>(), target.stride(0), target.stride(1), target.stride(2)},
      work.cosine.const_data_ptr<float>(),
      work.sine.const_data_ptr<float>(),
      static_cast<int>(source.size(2)),
      static_cast<int>(source.size(3) / 2),
      work.back};
  const int across = std::clamp(turn.half / kCount, 1, kRopeThreads);
  const int down = std::min((turn.heads + kRopeBatch - 1) / kRopeBatch, kRopeThreads / across);
  const dim3 block(across, down);
  constexpr int64_t kMostBatches = 65535;
  TORCH_CHECK_VALUE(
      source.size(0) <= kMostBatches, "[kernels] rotary positions of ", source.size(0),
      " sequences: at most ", kMostBatches, " at a time");
  const dim3 grid(static_cast<unsigned>(source.size(1)), static_cast<unsigned>(source.size(0)));
  rope_kernel<T, kCount><<<grid, block, 0, stream>>>(turn);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

void rope_on_cuda(const RopeWork& work) {
  if (work.source.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(work.source.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  with_float_type(work.source.scalar_type(), [&](auto type) {
    using T = decltype(type);
    constexpr int kCount = 16 / sizeof(T);
    constexpr auto kAngles = kCount * sizeof(float);
    if (has_vectors(work.source) && has_vectors(work.target) && is_aligned(work.cosine, kAngles) &&
        is_aligned(work.sine, kAngles)) {
      launch<T, kCount>(work, stream);
    } else {
      launch<T, 1>(work, stream);
    }
  });
}

}  // namespace sherd
