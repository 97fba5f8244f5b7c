// SPDX-License-Identifier: Apache-2.0
// Shapes as in state_space.h; L = 128 positions of a chunk.
#include "kernels/nn/state_space_device.cuh"

namespace sherd {
namespace {

// ---- steps -------------------------------------------------------------------------------------

/// A block has a chunk of 32 heads: it reads along the heads and writes along the positions.
__global__ void __launch_bounds__(128) steps_kernel(const DeviceSpace space) {
  __shared__ float tile[kWarp][kSpaceChunk + 1];
  const ChunkPlace at(space, blockIdx.x, blockIdx.z);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int first_head = blockIdx.y * kWarp, head = first_head + lane;
  const float bias = head < space.heads ? space.step_bias[head] : 0.0f;
  const Bf16* raw = at.rows(space.raw_step, head, 1);
  for (int l = warp; l < kSpaceChunk; l += 4) {
    float step = 0;
    if (l < at.valid && head < space.heads) {
      step = __bfloat162float(raw[l * space.raw_step.position_stride]) + bias;
      step = step > 20 ? step : log1pf(expf(step));
    }
    tile[lane][l] = step;
  }
  __syncthreads();
  for (int i = warp; i < kWarp && first_head + i < space.heads; i += 4) {
    const float decay = -expf(space.decay_log[first_head + i]);
    const int64_t to = at.times(space, first_head + i) + 4 * lane;
    float steps[4], decays[4];
    float sum = 0;
    for (int j = 0; j < 4; ++j) {
      steps[j] = tile[i][4 * lane + j];
      sum += steps[j] * decay;
      decays[j] = sum;
    }
    float before = sum;  // of this lane and those before it
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const float other = __shfl_up_sync(kAllLanes, before, offset);
      if (lane >= offset) before += other;
    }
    before -= sum;
    for (int j = 0; j < 4; ++j) {
      space.steps[to + j] = steps[j];
      space.decays[to + j] = before + decays[j];
    }
  }
}

// ---- states ------------------------------------------------------------------------------------

constexpr int kHalfDims = kSpaceDims / 2;

/// A head's part of a chunk in shared memory, while it is fetched and used.
template <int kState>
struct StateStage {
  using Values = SharedTile<kSpaceChunk, kHalfDims>;
  using Keys = SharedTile<kSpaceChunk, kState>;
  static constexpr int kBytes = Values::kBytes + Keys::kBytes + 2 * kSpaceChunk * sizeof(float);

  __device__ explicit StateStage(char* data)
      : values(data),
        keys(data + Values::kBytes),
        steps(reinterpret_cast<float*>(data + Values::kBytes + Keys::kBytes)),
        decays(steps + kSpaceChunk) {}
  Values values;
  Keys keys;
  float* steps;
  float* decays;
};

/// A block has half of a head's dims and walks through the chunks, forward or back. The state is in
/// registers, in fp32; what is written is rounded. Forward, a chunk adds t · exp(end − sum) · x ⊗
/// write; back, exp(sum) · dy ⊗ read.
template <int kState, bool kBack>
__global__ void __launch_bounds__(kSpaceThreads, 2)
    states_kernel(const DeviceSpace space, const DeviceRows values, Bf16* states) {
  extern __shared__ __align__(128) char shared[];
  using Stage = StateStage<kState>;
  constexpr int kTiles = kState / 4 / 8;  // of a warp: 16 dims by a quarter of the state
  const int head = blockIdx.x / 2, half = blockIdx.x % 2, sequence = blockIdx.y;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int dim = warp % 2 * 16, column = warp / 2 * (kState / 4);
  const auto& keys = kBack ? space.read : space.write;
  const int group = head / (space.heads / space.groups);
  const auto place = [&](int k) {
    return ChunkPlace(space, kBack ? space.chunks - 1 - k : k, sequence);
  };
  const auto fetch = [&](int k) {
    if (k < space.chunks) {
      const auto at = place(k);
      const Stage stage(shared + k % 2 * Stage::kBytes);
      stage.values.fetch(
          at.rows(values, head, kSpaceDims) + half * kHalfDims, values.position_stride, at.valid);
      stage.keys.fetch(at.rows(keys, group, kState), keys.position_stride, at.valid);
      if (warp == 0) {
        fetch_times(stage.steps, space.steps + at.times(space, head));
        fetch_times(stage.decays, space.decays + at.times(space, head));
      }
    }
    __pipeline_commit();
  };

  ResultTile state[kTiles] = {};
  fetch(0);
  for (int k = 0; k < space.chunks; ++k) {
    fetch(k + 1);
    __pipeline_wait_prior(1);
    __syncthreads();
    const Stage stage(shared + k % 2 * Stage::kBytes);
    const float end = stage.decays[kSpaceChunk - 1];
    const float kept = __expf(end);
    Bf16* to = states + place(k).state(space, head) +
               int64_t{half * kHalfDims + dim + lane / 4} * kState + column + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      auto& sum = state[n].values;
      *reinterpret_cast<uint32_t*>(to + n * 8) = packed(sum[0], sum[1]);
      *reinterpret_cast<uint32_t*>(to + 8 * kState + n * 8) = packed(sum[2], sum[3]);
      for (auto& value : sum) value *= kept;
    }
#pragma unroll
    for (int step = 0; step < kSpaceChunk; step += 16) {
      auto left = stage.values.turned_left(step, dim);
#pragma unroll
      for (int w = 0; w < 4; ++w) {  // two positions each
        float weights[2];
        for (int j = 0; j < 2; ++j) {
          const int l = step + w / 2 * 8 + lane % 4 * 2 + j;
          weights[j] =
              kBack ? __expf(stage.decays[l]) : stage.steps[l] * __expf(end - stage.decays[l]);
        }
        const float2 both = unpacked(left.words[w]);
        left.words[w] = packed(both.x * weights[0], both.y * weights[1]);
      }
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        multiply_add(state + n, left, stage.keys.right(step, column + n * 8));
      }
    }
    __syncthreads();
  }
}

template <bool kBack>
void launch_states(
    const DeviceSpace& space, const DeviceRows& values, Bf16* states, cudaStream_t stream) {
  const dim3 blocks(space.heads * 2, space.sequences);
  if (space.state == 128) {
    launch(
        states_kernel<128, kBack>, blocks, kSpaceThreads, 2 * StateStage<128>::kBytes, stream,
        space, values, states);
  } else {
    launch(
        states_kernel<64, kBack>, blocks, kSpaceThreads, 2 * StateStage<64>::kBytes, stream, space,
        values, states);
  }
}

}  // namespace

void launch_space_steps(const DeviceSpace& space, cudaStream_t stream) {
  const dim3 blocks(space.chunks, (space.heads + kWarp - 1) / kWarp, space.sequences);
  launch(steps_kernel, blocks, 128, 0, stream, space);
}

void launch_space_states(const DeviceSpace& space, Bf16* states, cudaStream_t stream) {
  launch_states<false>(space, space.x, states, stream);
}

void launch_space_state_gradients(
    const DeviceSpace& space, const DeviceRows& y_gradient, Bf16* d_states, cudaStream_t stream) {
  launch_states<true>(space, y_gradient, d_states, stream);
}

}  // namespace sherd
