// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/nn/mamba_device.h"
#include "kernels/sigmoid.cuh"
#include "kernels/vectors.cuh"

namespace sherd {
namespace {

constexpr int kConvThreads = 128;
constexpr int kConvForwardRun = 32;  // positions of a thread

/// Some channels of a position as numbers.
template <int kCount>
struct Channels {
  float values[kCount] = {};
};
template <int kCount>
__device__ Channels<kCount> numbers_of(const Vector<Bf16, kCount>& vector) {
  Channels<kCount> result;
  for (int c = 0; c < kCount; ++c) result.values[c] = __bfloat162float(vector.values[c]);
  return result;
}
template <int kCount>
__device__ Vector<Bf16, kCount> rounded(const Channels<kCount>& channels) {
  Vector<Bf16, kCount> result;
  for (int c = 0; c < kCount; ++c) result.values[c] = __float2bfloat16_rn(channels.values[c]);
  return result;
}

/// The filter of a thread's channels.
template <int kCount>
struct ConvFilter {
  float weights[kDeviceConvWidth][kCount];
  float bias[kCount];

  __device__ ConvFilter(const DeviceConv& conv, int channel) {
    for (int c = 0; c < kCount; ++c) {
      for (int i = 0; i < kDeviceConvWidth; ++i)
        weights[i][c] = conv.filter[(channel + c) * kDeviceConvWidth + i];
      bias[c] = conv.bias[channel + c];
    }
  }
  /// The sum before the SiLU, from the last positions, the oldest first.
  __device__ float sum(const Channels<kCount> (&x)[kDeviceConvWidth], int c) const {
    float result = bias[c];
    for (int i = 0; i < kDeviceConvWidth; ++i) result += weights[i][c] * x[i].values[c];
    return result;
  }
};

template <int kCount>
__device__ void push(Channels<kCount> (&last)[kDeviceConvWidth], const Channels<kCount>& next) {
  for (int i = 0; i + 1 < kDeviceConvWidth; ++i) last[i] = last[i + 1];
  last[kDeviceConvWidth - 1] = next;
}

/// A thread has 8 channels of some positions; the last ones stay in registers.
__global__ void __launch_bounds__(kConvThreads)
    conv_forward_kernel(const DeviceConv conv, Bf16* y) {
  constexpr int kCount = 8, kAhead = 4;
  const int channel = (blockIdx.x * kConvThreads + threadIdx.x) * kCount;
  if (channel >= conv.channels) return;
  const Bf16* x = conv.x.data + blockIdx.z * conv.x.sequence_stride + channel;
  Bf16* to = y + int64_t{blockIdx.z} * conv.positions * conv.channels + channel;
  const ConvFilter<kCount> filter(conv, channel);
  const int first = blockIdx.y * kConvForwardRun,
            end = min(first + kConvForwardRun, conv.positions);
  Channels<kCount> last[kDeviceConvWidth];
  for (int s = max(first - kDeviceConvWidth + 1, 0); s < first; ++s) {
    push(last, numbers_of(load<kCount>(x + s * conv.x.position_stride)));
  }
  for (int begin = first; begin < end; begin += kAhead) {
    Vector<Bf16, kCount> next[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (begin + j < end) next[j] = load<kCount>(x + (begin + j) * conv.x.position_stride);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (begin + j >= end) continue;
      push(last, numbers_of(next[j]));
      Channels<kCount> result;
      for (int c = 0; c < kCount; ++c) {
        const float sum = filter.sum(last, c);
        result.values[c] = sum * sigmoid(sum);
      }
      store(to + int64_t{begin + j} * conv.channels, rounded(result));
    }
  }
}

/// A thread has 4 channels of a run. A position's gradient needs those of the sums up to three
/// positions later.
__global__ void __launch_bounds__(kConvThreads)
    conv_backward_kernel(const DeviceConv conv, const Bf16* dy, const DeviceRows dx, float* sums) {
  constexpr int kCount = 4, kLate = kDeviceConvWidth - 1;
  const int channel = (blockIdx.x * kConvThreads + threadIdx.x) * kCount;
  if (channel >= conv.channels) return;
  const Bf16* x = conv.x.data + blockIdx.z * conv.x.sequence_stride + channel;
  const Bf16* from = dy + int64_t{blockIdx.z} * conv.positions * conv.channels + channel;
  Bf16* to = dx.data + blockIdx.z * dx.sequence_stride + channel;
  const ConvFilter<kCount> filter(conv, channel);
  const int first = blockIdx.y * kConvRun, end = min(first + kConvRun, conv.positions);
  Channels<kCount> last[kDeviceConvWidth], d_sums[kDeviceConvWidth], d_filter[kDeviceConvWidth],
      d_bias;
  for (int s = max(first - kLate, 0); s < first; ++s) {
    push(last, numbers_of(load<kCount>(x + s * conv.x.position_stride)));
  }
#pragma unroll 4
  for (int s = first; s < end + kLate; ++s) {
    Channels<kCount> d_sum;
    if (s < conv.positions) {
      const auto gradient = numbers_of(load<kCount>(from + int64_t{s} * conv.channels));
      push(last, numbers_of(load<kCount>(x + s * conv.x.position_stride)));
      for (int c = 0; c < kCount; ++c) {
        const float sum = filter.sum(last, c), open = sigmoid(sum);
        d_sum.values[c] = gradient.values[c] * open * (1.0f + sum * (1.0f - open));
        if (s >= end) continue;  // another run's
        for (int i = 0; i < kDeviceConvWidth; ++i) {
          d_filter[i].values[c] += d_sum.values[c] * last[i].values[c];
        }
        d_bias.values[c] += d_sum.values[c];
      }
    }
    push(d_sums, d_sum);
    if (s - kLate < first) continue;
    Channels<kCount> result;
    for (int c = 0; c < kCount; ++c) {
      for (int i = 0; i < kDeviceConvWidth; ++i) {
        result.values[c] += filter.weights[kDeviceConvWidth - 1 - i][c] * d_sums[i].values[c];
      }
    }
    store(to + (s - kLate) * dx.position_stride, rounded(result));
  }
  float* part =
      sums +
      (int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * (kDeviceConvWidth + 1) * conv.channels +
      channel;
  for (int i = 0; i <= kDeviceConvWidth; ++i) {
    const auto& of = i < kDeviceConvWidth ? d_filter[i] : d_bias;
    Vector<float, kCount> values;
    for (int c = 0; c < kCount; ++c) values.values[c] = of.values[c];
    store(part + i * conv.channels, values);
  }
}

dim3 conv_blocks(const DeviceConv& conv, int count, int run) {
  const int channels = count * kConvThreads;
  return dim3(
      (conv.channels + channels - 1) / channels, (conv.positions + run - 1) / run, conv.sequences);
}

}  // namespace

void launch_conv_forward(const DeviceConv& conv, Bf16* y, cudaStream_t stream) {
  conv_forward_kernel<<<conv_blocks(conv, 8, kConvForwardRun), kConvThreads, 0, stream>>>(conv, y);
}

void launch_conv_backward(
    const DeviceConv& conv,
    const Bf16* dy,
    const DeviceRows& dx,
    float* sums,
    cudaStream_t stream) {
  conv_backward_kernel<<<conv_blocks(conv, 4, kConvRun), kConvThreads, 0, stream>>>(
      conv, dy, dx, sums);
}

}  // namespace sherd
