// SPDX-License-Identifier: Apache-2.0
#include "kernels/fp8/fused.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/cast_types.h"
#include "kernels/fp8/fp8_device.cuh"

namespace sherd {
namespace {

constexpr int kFusedThreads = 256;

template <class Visitor>
void with_fused_type(c10::ScalarType dtype, Visitor visitor) {
  switch (dtype) {
    case c10::kFloat: return visitor(float{});
    case c10::kHalf: return visitor(c10::Half{});
    default: return visitor(c10::BFloat16{});
  }
}

/// Calls launch(held) with the number of vectors of a row that each thread keeps in registers.
template <class Launch>
void with_row(const char* what, int64_t columns, Launch launch) {
  const int64_t vectors = (columns + 8 * kFusedThreads - 1) / (8 * kFusedThreads);
  if (vectors <= 1) return launch(std::integral_constant<int, 1>());
  if (vectors <= 2) return launch(std::integral_constant<int, 2>());
  if (vectors <= 4) return launch(std::integral_constant<int, 4>());
  if (vectors <= 8) return launch(std::integral_constant<int, 8>());
  if (vectors <= 16) return launch(std::integral_constant<int, 16>());
  TORCH_CHECK_VALUE(
      false, "[kernels.fp8] no ", what, " on CUDA for rows of ", columns, " elements: at most ",
      16 * 8 * kFusedThreads);
}

__device__ int64_t vector_column(int k) {
  return 8 * (int64_t{k} * kFusedThreads + threadIdx.x);
}

__device__ float block_sum(float value) {
  __shared__ float warps[kFusedThreads / kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = 0;
  for (int warp = 0; warp < kFusedThreads / kWarp; ++warp) value += warps[warp];
  return value;
}

template <class T>
struct NormArguments {
  const T* x;
  const T* residual;  // or null: then sum is null, too
  const T* weight;
  T* sum;
  float* scale;
  uint8_t* values;
  float* row_scales;
  int64_t columns;
  float inverse_columns;
  float epsilon;
};

/// A block per row.
template <class T, int kHeld>
__global__ void __launch_bounds__(kFusedThreads, kHeld <= 2 ? 4 : 1)
    normed_rows_kernel(const NormArguments<T> at) {
  const int64_t begin = blockIdx.x * at.columns;
  Vector<T, 8> held[kHeld], weights[kHeld];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (vector_column(k) < at.columns) held[k] = load<8>(at.x + begin + vector_column(k));
  }
  if (at.residual) {
    Vector<T, 8> others[kHeld];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (vector_column(k) < at.columns) {
        others[k] = load<8>(at.residual + begin + vector_column(k));
      }
    }
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (vector_column(k) >= at.columns) continue;
      for (int e = 0; e < 8; ++e) {
        held[k].values[e] = static_cast<T>(
            static_cast<float>(held[k].values[e]) + static_cast<float>(others[k].values[e]));
      }
      *reinterpret_cast<Vector<T, 8>*>(at.sum + begin + vector_column(k)) = held[k];
    }
  }
  float squares = 0;
  float wide[8];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (vector_column(k) >= at.columns) continue;
    weights[k] = load<8>(at.weight + vector_column(k));
    widen8(held[k], wide);
    for (int e = 0; e < 8; ++e) squares += wide[e] * wide[e];
  }
  const float scale = rsqrtf(block_sum(squares) * at.inverse_columns + at.epsilon);
  const auto norm = [&](int k, float(&y)[8]) {
    widen8(held[k], y);
    for (int e = 0; e < 8; ++e) y[e] = y[e] * scale * static_cast<float>(weights[k].values[e]);
  };
  uint32_t amax = 0;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (vector_column(k) >= at.columns) continue;
    norm(k, wide);
    amax = largest8(wide, amax);
  }
  const float row_scale = fp8::scale_of(block_max<kFusedThreads>(amax));
  const float factor = fp8::inverse_of(row_scale);
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (vector_column(k) >= at.columns) continue;
    norm(k, wide);
    *reinterpret_cast<Bytes8*>(at.values + begin + vector_column(k)) = encode8(wide, factor);
  }
  if (threadIdx.x == 0) {
    at.scale[blockIdx.x] = scale;
    at.row_scales[blockIdx.x] = row_scale;
  }
}

/// A tile of the norm's result, times its row's factor, transposed.
template <class T>
__global__ void __launch_bounds__(kTileThreads) normed_tile_kernel(
    const T* sum,
    const T* weight,
    const float* scales,
    const float* gradient_scales,
    const float* bound,
    uint8_t* columns_out,
    int64_t rows,
    int64_t columns,
    int64_t length) {
  __shared__ TransposedTile<1> tile;
  const int64_t column = tile_column() + tile.first_column();
  const int64_t first = tile_row() + tile.first_row();
  const float over = fp8::inverse_of(*bound);
  Bytes8 bytes[4] = {};
  if (column < columns) {
    Vector<T, 8> vectors[4];
    float weights[8];
    widen8(load<8>(weight + column), weights);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (first + r < rows) vectors[r] = load<8>(sum + (first + r) * columns + column);
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (first + r >= rows) continue;
      float y[8];
      widen8(vectors[r], y);
      const float scale = scales[first + r];
      for (int e = 0; e < 8; ++e) y[e] = y[e] * scale * weights[e];
      bytes[r] = encode8(y, gradient_scales[first + r] * over);
    }
  }
  tile.put(0, bytes);
  __syncthreads();
  tile.write(0, columns_out, tile_column(), columns, tile_row(), length);
}

/// As in swiglu.cu.
__device__ float open_of(float gate) {
  return __fdividef(1.0f, 1.0f + __expf(-gate));
}

template <class T>
__device__ void activate8(const Vector<T, 8>& gates, const Vector<T, 8>& ups, float (&result)[8]) {
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const auto gate = static_cast<float>(gates.values[e]);
    result[e] = gate * open_of(gate) * static_cast<float>(ups.values[e]);
  }
}

template <class T, int kHeld>
__global__ void __launch_bounds__(kFusedThreads)
    swiglu_rows_kernel(const T* gate_up, uint8_t* values, float* row_scales, int64_t columns) {
  const int64_t row = blockIdx.x;
  const T* gate = gate_up + 2 * row * columns;
  const T* up = gate + columns;
  float held[kHeld][8];
  uint32_t amax = 0;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (vector_column(k) >= columns) continue;
    activate8(load<8>(gate + vector_column(k)), load<8>(up + vector_column(k)), held[k]);
    amax = largest8(held[k], amax);
  }
  const float scale = fp8::scale_of(block_max<kFusedThreads>(amax));
  const float factor = fp8::inverse_of(scale);
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (vector_column(k) >= columns) continue;
    *reinterpret_cast<Bytes8*>(values + row * columns + vector_column(k)) =
        encode8(held[k], factor);
  }
  if (threadIdx.x == 0) row_scales[row] = scale;
}

/// The gradients of eight gates and ups; the activation if it is wanted.
template <class T>
struct SwigluBack {
  float d_gate[8], d_up[8], activation[8];
  __device__ SwigluBack(
      const Vector<T, 8>& incoming, const Vector<T, 8>& gates, const Vector<T, 8>& ups) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const auto gate = static_cast<float>(gates.values[e]);
      const auto up = static_cast<float>(ups.values[e]);
      const auto gradient = static_cast<float>(incoming.values[e]);
      const float open = open_of(gate);
      const float silu = gate * open;
      d_gate[e] = gradient * up * open * (1 + gate - silu);
      d_up[e] = gradient * silu;
      activation[e] = silu * up;
    }
  }
};

/// A block per row: the scale of its gradients.
template <class T>
__global__ void __launch_bounds__(kFusedThreads) swiglu_scales_kernel(
    const T* d_activation,
    const T* gate_up,
    const float* input_scales,
    float* row_scales,
    unsigned* bound,
    int64_t columns) {
  const int64_t row = blockIdx.x;
  const T* incoming = d_activation + row * columns;
  const T* gate = gate_up + 2 * row * columns;
  uint32_t amax = 0;
#pragma unroll 4
  for (int k = 0; vector_column(k) < columns; ++k) {
    const SwigluBack<T> back(
        load<8>(incoming + vector_column(k)), load<8>(gate + vector_column(k)),
        load<8>(gate + columns + vector_column(k)));
    amax = largest8(back.d_gate, largest8(back.d_up, amax));
  }
  const float scale = fp8::scale_of(block_max<kFusedThreads>(amax));
  if (threadIdx.x > 0) return;
  row_scales[row] = scale;
  atomicMax(bound, fp8::magnitude_bits(scale * input_scales[row]));
}

template <class T>
struct SwigluTile {
  const T* d_activation;
  const T* gate_up;
  const float* down_scales;  // of the rows of the gradient behind the activation
  const float* down_bound;
  const float* row_scales;
  uint8_t* rows_out;        // [rows, 2F]
  uint8_t* columns_out;     // [2F, length]
  uint8_t* activation_out;  // [F, length]
  int64_t rows;
  int64_t columns;  // F
  int64_t length;
};

template <class T>
__global__ void __launch_bounds__(kTileThreads) swiglu_tile_kernel(const SwigluTile<T> at) {
  __shared__ TransposedTile<3> tile;
  const int64_t column = tile_column() + tile.first_column();
  const int64_t first = tile_row() + tile.first_row();
  const float over = fp8::inverse_of(*at.down_bound);
  Bytes8 gates[4] = {}, ups[4] = {}, activations[4] = {};
  if (column < at.columns) {
    Vector<T, 8> incoming[4], gate_vectors[4], up_vectors[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (first + r >= at.rows) continue;
      const int64_t row = first + r;
      incoming[r] = load<8>(at.d_activation + row * at.columns + column);
      gate_vectors[r] = load<8>(at.gate_up + 2 * row * at.columns + column);
      up_vectors[r] = load<8>(at.gate_up + (2 * row + 1) * at.columns + column);
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (first + r >= at.rows) continue;
      const int64_t row = first + r;
      const SwigluBack<T> back(incoming[r], gate_vectors[r], up_vectors[r]);
      const float factor = fp8::inverse_of(at.row_scales[row]);
      gates[r] = encode8(back.d_gate, factor);
      ups[r] = encode8(back.d_up, factor);
      activations[r] = encode8(back.activation, at.down_scales[row] * over);
      auto* out = at.rows_out + 2 * row * at.columns + column;
      *reinterpret_cast<Bytes8*>(out) = gates[r];
      *reinterpret_cast<Bytes8*>(out + at.columns) = ups[r];
    }
  }
  tile.put(0, gates);
  tile.put(1, ups);
  tile.put(2, activations);
  __syncthreads();
  const auto write = [&](int output, uint8_t* target) {
    tile.write(output, target, tile_column(), at.columns, tile_row(), at.length);
  };
  write(0, at.columns_out);
  write(1, at.columns_out + at.columns * at.length);
  write(2, at.activation_out);
}

uint8_t* fused_data(const at::Tensor& values) {
  return static_cast<uint8_t*>(values.mutable_data_ptr());
}

}  // namespace

void encode_normed_on_cuda(
    const at::Tensor& x,
    const at::Tensor& residual,
    const at::Tensor& weight,
    double epsilon,
    const NormedFp8& result) {
  if (x.size(0) == 0) return;
  const c10::cuda::CUDAGuard guard(x.device());
  with_fused_type(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const bool adds = residual.defined();
    const NormArguments<T> at{
        x.const_data_ptr<T>(),
        adds ? residual.const_data_ptr<T>() : nullptr,
        weight.const_data_ptr<T>(),
        adds ? result.sum.mutable_data_ptr<T>() : nullptr,
        result.scale.mutable_data_ptr<float>(),
        fused_data(result.rows.values),
        result.rows.scales.mutable_data_ptr<float>(),
        x.size(1),
        1.0f / static_cast<float>(x.size(1)),
        static_cast<float>(epsilon)};
    with_row("RMSNorm", x.size(1), [&](auto held) {
      normed_rows_kernel<T, held>
          <<<static_cast<unsigned>(x.size(0)), kFusedThreads, 0,
             c10::cuda::getCurrentCUDAStream()>>>(at);
    });
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

void encode_normed_again_on_cuda(
    const at::Tensor& sum,
    const at::Tensor& weight,
    const at::Tensor& scale,
    const Fp8Gradient& gradient,
    const Fp8Matrix& result) {
  const int64_t length = result.values.size(1);
  if (result.values.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(sum.device());
  with_fused_type(sum.scalar_type(), [&](auto type) {
    using T = decltype(type);
    normed_tile_kernel<T>
        <<<tile_grid(length, sum.size(1)), kTileThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
            sum.const_data_ptr<T>(), weight.const_data_ptr<T>(), scale.const_data_ptr<float>(),
            gradient.rows.scales.const_data_ptr<float>(), gradient.bound.const_data_ptr<float>(),
            fused_data(result.values), sum.size(0), sum.size(1), length);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

void encode_swiglu_on_cuda(const at::Tensor& gate_up, const Fp8Matrix& result) {
  const auto rows = static_cast<unsigned>(gate_up.size(0));
  if (rows == 0) return;
  const c10::cuda::CUDAGuard guard(gate_up.device());
  with_fused_type(gate_up.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const int64_t columns = gate_up.size(1) / 2;
    with_row("SwiGLU", columns, [&](auto held) {
      swiglu_rows_kernel<T, held><<<rows, kFusedThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
          gate_up.const_data_ptr<T>(), fused_data(result.values),
          result.scales.mutable_data_ptr<float>(), columns);
    });
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

void encode_swiglu_gradients_on_cuda(
    const at::Tensor& d_activation,
    const at::Tensor& gate_up,
    const Fp8Gradient& gradient,
    const at::Tensor& input_scales,
    const SwigluGradients& result) {
  const c10::cuda::CUDAGuard guard(gate_up.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int64_t rows = d_activation.size(0), columns = d_activation.size(1);
  auto* bound = result.gate_up.bound.mutable_data_ptr<float>();
  C10_CUDA_CHECK(cudaMemsetAsync(bound, 0, sizeof(float), stream.stream()));
  if (rows == 0) return;
  with_fused_type(gate_up.scalar_type(), [&](auto type) {
    using T = decltype(type);
    auto* row_scales = result.gate_up.rows.scales.mutable_data_ptr<float>();
    swiglu_scales_kernel<T><<<static_cast<unsigned>(rows), kFusedThreads, 0, stream>>>(
        d_activation.const_data_ptr<T>(), gate_up.const_data_ptr<T>(),
        input_scales.const_data_ptr<float>(), row_scales, reinterpret_cast<unsigned*>(bound),
        columns);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    const int64_t length = result.activation.values.size(1);
    const SwigluTile<T> at{
        d_activation.const_data_ptr<T>(),
        gate_up.const_data_ptr<T>(),
        gradient.rows.scales.const_data_ptr<float>(),
        gradient.bound.const_data_ptr<float>(),
        row_scales,
        fused_data(result.gate_up.rows.values),
        fused_data(result.gate_up.columns.values),
        fused_data(result.activation.values),
        rows,
        columns,
        length};
    swiglu_tile_kernel<T><<<tile_grid(length, columns), kTileThreads, 0, stream>>>(at);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

}  // namespace sherd
