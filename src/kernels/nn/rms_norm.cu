// SPDX-License-Identifier: Apache-2.0
#include "kernels/nn/rms_norm.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_pipeline.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cast_types.h"
#include "kernels/vectors.cuh"

namespace sherd {
namespace {

/// A row is shared by `kRowThreads` threads; each holds at most `kHeld` vectors of `kCount`
/// elements in registers. Short rows are a warp's, several to a block.
template <int count, int held, int row_threads>
struct Shape {
  static constexpr int kCount = count;
  static constexpr int kHeld = held;
  static constexpr int kRowThreads = row_threads;
  static constexpr int kBlock = std::max(row_threads, 256);
  static constexpr int kRows = kBlock / row_threads;
  // Blocks that an SM has registers for: without it, the compiler takes more than it needs.
  static constexpr int kResident = 256 * (held <= 2 ? 4 : 2) / kBlock + (kBlock > 512);
  static constexpr int64_t kMost = int64_t{count} * held * row_threads;  // elements of a row

  /// body(k, i) for each vector i of the row that this thread holds, as its k-th.
  template <class Body>
  static __device__ void each(int dim, Body body) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = threadIdx.x % kRowThreads + k * kRowThreads;
      if (i < dim / kCount) body(k, i);
    }
  }
};

/// The sum over the threads of a row, the same bits in each of them. Rows take turns in two places,
/// so that one barrier each is enough.
template <class Shape, class Math>
__device__ Math row_sum(Math value, int turn) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  if constexpr (Shape::kRowThreads > kWarp) {
    __shared__ Math sums[2][Shape::kRowThreads / kWarp];
    if (threadIdx.x % kWarp == 0) sums[turn][threadIdx.x / kWarp] = value;
    __syncthreads();
    value = 0;
    for (int warp = 0; warp < Shape::kRowThreads / kWarp; ++warp) value += sums[turn][warp];
  }
  return value;
}

__device__ float inverse_root(float value) {
  return rsqrtf(value);
}
__device__ double inverse_root(double value) {
  return rsqrt(value);
}

template <class T>
struct Forward {
  using Math = CastMath<T, T>;
  const T* x;
  const T* residual;  // or null
  const T* weight;
  T* sum;
  T* y;
  Math* scale;
  int64_t rows;
  int dim;
  Math inverse_dim;
  Math epsilon;
};

/// Loads come first, so that many are under way at a time.
template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kBlock, Shape::kResident)
    rms_norm_forward_kernel(const Forward<T> at) {
  using Math = typename Forward<T>::Math;
  constexpr int kCount = Shape::kCount;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * Shape::kRows + threadIdx.x / Shape::kRowThreads;
  if (row >= at.rows) return;  // a warp's, or the block's
  const int64_t begin = row * at.dim;
  Vector<T, kCount> values[Shape::kHeld], others[Shape::kHeld], weights[Shape::kHeld];
  Shape::each(at.dim, [&](int k, int i) { values[k] = load<kCount>(at.x + begin + i * kCount); });
  if (at.residual) {
    Shape::each(
        at.dim, [&](int k, int i) { others[k] = load<kCount>(at.residual + begin + i * kCount); });
    Shape::each(at.dim, [&](int k, int i) {
      for (int e = 0; e < kCount; ++e) {
        values[k].values[e] = static_cast<T>(
            static_cast<Math>(values[k].values[e]) + static_cast<Math>(others[k].values[e]));
      }
      store(at.sum + begin + i * kCount, values[k]);
    });
  }
  Math squares = 0;
  Shape::each(at.dim, [&](int k, int i) {
    weights[k] = load<kCount>(at.weight + i * kCount);
    for (int e = 0; e < kCount; ++e) {
      const auto value = static_cast<Math>(values[k].values[e]);
      squares += value * value;
    }
  });
  const Math scale = inverse_root(row_sum<Shape>(squares, 0) * at.inverse_dim + at.epsilon);
  if (threadIdx.x % Shape::kRowThreads == 0) at.scale[row] = scale;
  Shape::each(at.dim, [&](int k, int i) {
    keep_packed(values[k]);
    for (int e = 0; e < kCount; ++e) {
      values[k].values[e] = static_cast<T>(
          static_cast<Math>(values[k].values[e]) * scale * static_cast<Math>(weights[k].values[e]));
    }
    store(at.y + begin + i * kCount, values[k]);
  });
}

template <class T>
struct Backward {
  using Math = CastMath<T, T>;
  const T* y_gradient;
  const T* sum_gradient;  // or null
  const T* sum;
  const T* weight;
  const Math* scale;
  T* gradient;
  Math* partial;  // the weight's gradient of each part of the rows; or null
  int64_t rows;
  int dim;
  Math inverse_dim;
};

/// Rows on their way to shared memory while others are worked on. A thread fetches what it will
/// read itself, so that no barrier is needed.
template <class T, class Shape>
struct Ahead {
  using Part = Vector<T, Shape::kCount>;
  static constexpr int kInputs = 3;
  static constexpr int kBytes = kInputs * Shape::kHeld * Shape::kBlock * sizeof(Part);
  /// Rows at a time; 1: too long, or too narrow, to be fetched so.
  static constexpr int kStages = sizeof(Part) == 16 ? std::clamp((96 << 10) / kBytes, 1, 4) : 1;
  static constexpr int kShared = kStages > 1 ? kStages* kBytes : 0;

  static __device__ Part& place(int stage, int input, int k) {
    extern __shared__ uint4 places[];
    const int at = ((stage * kInputs + input) * Shape::kHeld + k) * Shape::kBlock;
    return reinterpret_cast<Part*>(places)[at + threadIdx.x];
  }
};

// The second stage is launched while the first runs, and waits for its end: what is saved is the
// time to launch it. From Hopper on.
__device__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
__device__ void await_previous() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

/// As many blocks as run at once share the rows; each keeps its part of the weight's gradient in
/// registers until its last row.
template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kBlock, Shape::kBlock > 256 ? 1 : 2)
    rms_norm_backward_kernel(const Backward<T> at) {
  using Math = typename Backward<T>::Math;
  using Ahead = Ahead<T, Shape>;
  constexpr int kCount = Shape::kCount;
  const int64_t part =
      static_cast<int64_t>(blockIdx.x) * Shape::kRows + threadIdx.x / Shape::kRowThreads;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * Shape::kRows;
  let_next_begin();
  const T* inputs[] = {at.y_gradient, at.sum, at.sum_gradient};
  const auto fetch = [&](int64_t row, int stage) {
    if (row < at.rows) {
      Shape::each(at.dim, [&](int k, int i) {
#pragma unroll
        for (int input = 0; input < Ahead::kInputs; ++input) {
          if (!inputs[input]) continue;
          __pipeline_memcpy_async(
              &Ahead::place(stage, input, k), inputs[input] + row * at.dim + i * kCount, 16);
        }
      });
    }
    __pipeline_commit();
  };
  for (int stage = 0; stage + 1 < Ahead::kStages; ++stage) fetch(part + stage * stride, stage);
  Vector<T, kCount> weights[Shape::kHeld];
  Shape::each(at.dim, [&](int k, int i) { weights[k] = load<kCount>(at.weight + i * kCount); });
  Math sums[Shape::kHeld][kCount] = {};
  int turn = 0;
  int stage = 0;
  for (int64_t row = part; row < at.rows; row += stride) {
    const Math scale = at.scale[row];
    Vector<T, kCount> vectors[Ahead::kInputs][Shape::kHeld];
    if constexpr (Ahead::kStages > 1) {
      constexpr int kMore = Ahead::kStages - 1;
      fetch(row + kMore * stride, (stage + kMore) % Ahead::kStages);
      __pipeline_wait_prior(kMore);
    }
    Shape::each(at.dim, [&](int k, int i) {
#pragma unroll
      for (int input = 0; input < Ahead::kInputs; ++input) {
        if (!inputs[input]) continue;
        vectors[input][k] = Ahead::kStages > 1
                                ? Ahead::place(stage, input, k)
                                : load<kCount>(inputs[input] + row * at.dim + i * kCount);
      }
    });
    stage = (stage + 1) % Ahead::kStages;
    auto& [incoming, values, others] = vectors;
    Math along = 0;
    Shape::each(at.dim, [&](int k, int i) {
      for (int e = 0; e < kCount; ++e) {
        const Math product =
            static_cast<Math>(incoming[k].values[e]) * static_cast<Math>(values[k].values[e]);
        along += product * static_cast<Math>(weights[k].values[e]);
        sums[k][e] += product * scale;
      }
    });
    const Math mean = row_sum<Shape>(along, turn) * scale * at.inverse_dim;
    turn ^= 1;
    Shape::each(at.dim, [&](int k, int i) {
      keep_packed(incoming[k]);
      keep_packed(values[k]);
      keep_packed(others[k]);
      keep_packed(weights[k]);
      for (int e = 0; e < kCount; ++e) {
        const Math weighted =
            static_cast<Math>(incoming[k].values[e]) * static_cast<Math>(weights[k].values[e]);
        const Math normed = static_cast<Math>(values[k].values[e]) * scale;
        Math value = scale * (weighted - normed * mean);
        if (at.sum_gradient) value += static_cast<Math>(others[k].values[e]);
        values[k].values[e] = static_cast<T>(value);
      }
      store(at.gradient + row * at.dim + i * kCount, values[k]);
    });
  }
  if (!at.partial) return;
  Shape::each(at.dim, [&](int k, int i) {
    constexpr int kMost = 16 / sizeof(Math);
    constexpr int kAtOnce = kCount < kMost ? kCount : kMost;
    for (int e = 0; e < kCount; e += kAtOnce) {
      Vector<Math, kAtOnce> some;
      for (int j = 0; j < kAtOnce; ++j) some.values[j] = sums[k][e + j];
      store(at.partial + part * at.dim + i * kCount + e, some);
    }
  });
}

/// The sum of each column of [parts, dim] goes to the target: the second stage.
template <class Target, class Math>
__global__ void sum_columns(const Math* partial, int64_t parts, int dim, Target* target, bool add) {
  __shared__ Math sums[kWarp][kWarp + 1];
  const int first = blockIdx.x * kWarp;
  await_previous();
  Math sum = 0;
  if (first + static_cast<int>(threadIdx.x) < dim) {
#pragma unroll 8
    for (int64_t i = threadIdx.y; i < parts; i += kWarp) {
      sum += partial[i * dim + first + threadIdx.x];
    }
  }
  sums[threadIdx.x][threadIdx.y] = sum;
  __syncthreads();
  const int column = first + static_cast<int>(threadIdx.y);  // a warp's
  if (column >= dim) return;
  sum = sums[threadIdx.y][threadIdx.x];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  }
  if (threadIdx.x > 0) return;
  auto value = static_cast<CastMath<Math, Target>>(sum);
  if (add) value += static_cast<CastMath<Math, Target>>(target[column]);
  target[column] = cast_to<Target>(value);
}

/// Calls `launch` with a shape for these rows. Null is aligned, too.
template <class T, class Launch>
void with_shape(int64_t dim, std::initializer_list<const T*> all, Launch launch) {
  constexpr int kCount = 16 / sizeof(T);
  const bool wide = dim % kCount == 0 && std::all_of(all.begin(), all.end(), [](const T* data) {
                      return reinterpret_cast<uintptr_t>(data) % 16 == 0;
                    });
  const auto fits = [&]<class S>(S shape) {
    if (dim > S::kMost) return false;
    launch(shape);
    return true;
  };
  if (wide && (fits(Shape<kCount, 4, kWarp>()) || fits(Shape<kCount, 2, 256>()) ||
               fits(Shape<kCount, 4, 256>()) || fits(Shape<kCount, 4, 512>()) ||
               fits(Shape<kCount, 4, 1024>()))) {
    return;
  }
  if (fits(Shape<1, 8, 256>()) || fits(Shape<1, 8, 1024>())) return;
  TORCH_CHECK_VALUE(
      false, "[kernels] no RMSNorm on CUDA for rows of ", dim, " elements of ", sizeof(T),
      " bytes: at most 64 KiB, or 8192 elements that don't come in 16-byte vectors");
}

unsigned blocks_for(int64_t rows, int64_t rows_each) {
  return static_cast<unsigned>((rows + rows_each - 1) / rows_each);
}

}  // namespace

void rms_norm_forward_on_cuda(const RmsNormForward& work) {
  const c10::cuda::CUDAGuard guard(work.x.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int64_t dim = work.weight.numel();
  with_float_type(work.x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    using Math = typename Forward<T>::Math;
    const bool adds = work.residual.defined();
    const Forward<T> at{
        work.x.const_data_ptr<T>(),
        adds ? work.residual.const_data_ptr<T>() : nullptr,
        work.weight.const_data_ptr<T>(),
        adds ? work.sum.mutable_data_ptr<T>() : nullptr,
        work.y.mutable_data_ptr<T>(),
        work.scale.mutable_data_ptr<Math>(),
        work.scale.numel(),
        static_cast<int>(dim),
        Math(1) / static_cast<Math>(dim),
        static_cast<Math>(work.epsilon)};
    if (at.rows == 0) return;
    with_shape<T>(dim, {at.x, at.residual, at.weight, at.sum, at.y}, [&]<class S>(S) {
      rms_norm_forward_kernel<T, S><<<blocks_for(at.rows, S::kRows), S::kBlock, 0, stream>>>(at);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    });
  });
}

void rms_norm_backward_on_cuda(const RmsNormBackward& work) {
  const c10::cuda::CUDAGuard guard(work.sum.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int64_t dim = work.weight.numel();
  with_float_type(work.sum.scalar_type(), [&](auto type) {
    using T = decltype(type);
    using Math = typename Backward<T>::Math;
    const bool more = work.sum_gradient.defined();
    Backward<T> at{
        work.y_gradient.const_data_ptr<T>(),
        more ? work.sum_gradient.const_data_ptr<T>() : nullptr,
        work.sum.const_data_ptr<T>(),
        work.weight.const_data_ptr<T>(),
        work.scale.const_data_ptr<Math>(),
        work.gradient.mutable_data_ptr<T>(),
        nullptr,
        work.scale.numel(),
        static_cast<int>(dim),
        Math(1) / static_cast<Math>(dim)};
    at::Tensor partial = at::empty({0, dim}, work.scale.options());
    const auto launch = [&]<class S>(S) {
      int resident = 0;
      const auto kernel = rms_norm_backward_kernel<T, S>;
      constexpr int kShared = Ahead<T, S>::kShared;
      C10_CUDA_CHECK(
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
      C10_CUDA_CHECK(
          cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, S::kBlock, kShared));
      const int most = resident * at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
      const auto blocks = std::min(blocks_for(at.rows, S::kRows), static_cast<unsigned>(most));
      if (work.weight_gradient.defined()) {
        partial = at::empty({int64_t{blocks} * S::kRows, dim}, work.scale.options());
        at.partial = partial.mutable_data_ptr<Math>();
      }
      kernel<<<blocks, S::kBlock, kShared, stream>>>(at);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    };
    if (at.rows > 0) {
      with_shape<T>(dim, {at.y_gradient, at.sum_gradient, at.sum, at.weight, at.gradient}, launch);
    }
    if (!work.weight_gradient.defined()) return;
    with_float_type(work.weight_gradient.scalar_type(), [&](auto target) {
      using Target = decltype(target);
      cudaLaunchAttribute early{};
      early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      early.val.programmaticStreamSerializationAllowed = 1;
      cudaLaunchConfig_t how{};
      how.gridDim = blocks_for(at.dim, kWarp);
      how.blockDim = dim3(kWarp, kWarp);
      how.stream = stream;
      how.attrs = &early;
      static const bool waits = [] {  // built for Hopper: it knows of the early launch
        cudaFuncAttributes attributes;
        C10_CUDA_CHECK(cudaFuncGetAttributes(&attributes, sum_columns<Target, Math>));
        return attributes.ptxVersion >= 90;
      }();
      how.numAttrs = at.rows > 0 && waits;
      C10_CUDA_CHECK(cudaLaunchKernelEx(
          &how, sum_columns<Target, Math>, static_cast<const Math*>(at.partial), partial.size(0),
          at.dim, work.weight_gradient.mutable_data_ptr<Target>(), work.add));
    });
  });
}

}  // namespace sherd
