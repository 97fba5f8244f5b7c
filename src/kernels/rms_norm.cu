// SPDX-License-Identifier: Apache-2.0
#include "kernels/rms_norm.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdint>

#include "kernels/deposit_types.h"

namespace sherd {
namespace {

constexpr int kWarp = 32;

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

template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T values[kCount];
};

template <int kCount, class T>
__device__ Vector<T, kCount> load(const T* data, int i) {
  return reinterpret_cast<const Vector<T, kCount>*>(data)[i];
}
template <int kCount, class T>
__device__ void store(T* data, int i, const Vector<T, kCount>& vector) {
  reinterpret_cast<Vector<T, kCount>*>(data)[i] = vector;
}

/// Keeps the compiler from taking the elements apart, into twice as many registers, before this.
/// What it made of them earlier it makes again.
template <class T, int kCount>
__device__ void keep_packed(Vector<T, kCount>& vector) {
  if constexpr (sizeof(vector) == sizeof(uint4)) {
    auto& words = reinterpret_cast<uint4&>(vector);
    asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
  }
}

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
  using Math = DepositMath<T, T>;
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
    forward_kernel(const Forward<T> at) {
  using Math = typename Forward<T>::Math;
  constexpr int kCount = Shape::kCount;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * Shape::kRows + threadIdx.x / Shape::kRowThreads;
  if (row >= at.rows) return;  // a warp's, or the block's
  const int64_t begin = row * at.dim;
  Vector<T, kCount> values[Shape::kHeld], others[Shape::kHeld], weights[Shape::kHeld];
  Shape::each(at.dim, [&](int k, int i) { values[k] = load<kCount>(at.x + begin, i); });
  if (at.residual) {
    Shape::each(at.dim, [&](int k, int i) { others[k] = load<kCount>(at.residual + begin, i); });
    Shape::each(at.dim, [&](int k, int i) {
      for (int e = 0; e < kCount; ++e) {
        values[k].values[e] = static_cast<T>(
            static_cast<Math>(values[k].values[e]) + static_cast<Math>(others[k].values[e]));
      }
      store(at.sum + begin, i, values[k]);
    });
  }
  Math squares = 0;
  Shape::each(at.dim, [&](int k, int i) {
    weights[k] = load<kCount>(at.weight, i);
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
    store(at.y + begin, i, values[k]);
  });
}

template <class T>
struct Backward {
  using Math = DepositMath<T, T>;
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

/// As many blocks as run at once share the rows; each keeps its part of the weight's gradient in
/// registers until its last row.
template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kBlock, Shape::kResident)
    backward_kernel(const Backward<T> at) {
  using Math = typename Backward<T>::Math;
  constexpr int kCount = Shape::kCount;
  const int64_t part =
      static_cast<int64_t>(blockIdx.x) * Shape::kRows + threadIdx.x / Shape::kRowThreads;
  Math sums[Shape::kHeld][kCount] = {};
  int turn = 0;
  for (int64_t row = part; row < at.rows; row += static_cast<int64_t>(gridDim.x) * Shape::kRows) {
    const int64_t begin = row * at.dim;
    const Math scale = at.scale[row];
    Vector<T, kCount> incoming[Shape::kHeld], values[Shape::kHeld], others[Shape::kHeld];
    Shape::each(at.dim, [&](int k, int i) {
      incoming[k] = load<kCount>(at.y_gradient + begin, i);
      values[k] = load<kCount>(at.sum + begin, i);
      if (at.sum_gradient) others[k] = load<kCount>(at.sum_gradient + begin, i);
    });
    Math along = 0;
    Shape::each(at.dim, [&](int k, int i) {
      const auto weights = load<kCount>(at.weight, i);
      for (int e = 0; e < kCount; ++e) {
        const Math product =
            static_cast<Math>(incoming[k].values[e]) * static_cast<Math>(values[k].values[e]);
        along += product * static_cast<Math>(weights.values[e]);
        sums[k][e] += product * scale;
      }
    });
    const Math mean = row_sum<Shape>(along, turn) * scale * at.inverse_dim;
    turn ^= 1;
    Shape::each(at.dim, [&](int k, int i) {
      keep_packed(incoming[k]);
      keep_packed(values[k]);
      keep_packed(others[k]);
      const auto weights = load<kCount>(at.weight, i);
      for (int e = 0; e < kCount; ++e) {
        const Math weighted =
            static_cast<Math>(incoming[k].values[e]) * static_cast<Math>(weights.values[e]);
        const Math normed = static_cast<Math>(values[k].values[e]) * scale;
        Math value = scale * (weighted - normed * mean);
        if (at.sum_gradient) value += static_cast<Math>(others[k].values[e]);
        values[k].values[e] = static_cast<T>(value);
      }
      store(at.gradient + begin, i, values[k]);
    });
  }
  if (!at.partial) return;
  Shape::each(at.dim, [&](int k, int i) {
    for (int e = 0; e < kCount; ++e) at.partial[part * at.dim + i * kCount + e] = sums[k][e];
  });
}

/// The sum of each column of [parts, dim] goes to the target: the second stage.
template <class Target, class Math>
__global__ void sum_columns(const Math* partial, int64_t parts, int dim, Target* target, bool add) {
  __shared__ Math sums[kWarp][kWarp];
  const int column = blockIdx.x * kWarp + threadIdx.x;
  Math sum = 0;
  if (column < dim) {
#pragma unroll 4
    for (int64_t i = threadIdx.y; i < parts; i += kWarp) sum += partial[i * dim + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= dim) return;
  for (int i = 1; i < kWarp; ++i) sum += sums[i][threadIdx.x];
  auto value = static_cast<DepositMath<Math, Target>>(sum);
  if (add) value += static_cast<DepositMath<Math, Target>>(target[column]);
  target[column] = deposit_cast<Target>(value);
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
  with_deposit_type(work.x.scalar_type(), [&](auto type) {
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
      forward_kernel<T, S><<<blocks_for(at.rows, S::kRows), S::kBlock, 0, stream>>>(at);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    });
  });
}

void rms_norm_backward_on_cuda(const RmsNormBackward& work) {
  const c10::cuda::CUDAGuard guard(work.sum.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int64_t dim = work.weight.numel();
  with_deposit_type(work.sum.scalar_type(), [&](auto type) {
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
      const auto kernel = backward_kernel<T, S>;
      C10_CUDA_CHECK(
          cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, S::kBlock, 0));
      const int most = resident * at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
      const auto blocks = std::min(blocks_for(at.rows, S::kRows), static_cast<unsigned>(most));
      if (work.weight_gradient.defined()) {
        partial = at::empty({int64_t{blocks} * S::kRows, dim}, work.scale.options());
        at.partial = partial.mutable_data_ptr<Math>();
      }
      kernel<<<blocks, S::kBlock, 0, stream>>>(at);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    };
    if (at.rows > 0) {
      with_shape<T>(dim, {at.y_gradient, at.sum_gradient, at.sum, at.weight, at.gradient}, launch);
    }
    if (!work.weight_gradient.defined()) return;
    with_deposit_type(work.weight_gradient.scalar_type(), [&](auto target) {
      using Target = decltype(target);
      sum_columns<Target, Math><<<blocks_for(at.dim, kWarp), dim3(kWarp, kWarp), 0, stream>>>(
          at.partial, partial.size(0), at.dim, work.weight_gradient.mutable_data_ptr<Target>(),
          work.add);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    });
  });
}

}  // namespace sherd
