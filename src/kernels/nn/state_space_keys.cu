// SPDX-License-Identifier: Apache-2.0
// Shapes as in state_space.h; L = 128 positions of a chunk.
#include "kernels/nn/state_space_device.cuh"

namespace sherd {
namespace {

/// What reaches `read` by way of the states before the chunk, and `write` by way of those after it,
/// summed over the heads of a group: Σ exp(sum) · dy · state, and Σ t · exp(end − sum) · x ·
/// d_state. Blocks of even z have the first, those of odd z the other. A warp has 16 positions.
template <int kState>
__global__ void __launch_bounds__(kSpaceThreads)
    key_gradients_kernel(const DeviceSpace space, const DeviceSpaceGradients of) {
  extern __shared__ __align__(128) char shared[];
  using Stage = HeadStage<kState>;
  constexpr int kTiles = kState / 8;
  const ChunkPlace at(space, blockIdx.x, blockIdx.z / 2);
  const bool writes = blockIdx.z % 2 == 1;
  const int group = blockIdx.y, heads = space.heads / space.groups, first_head = group * heads;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int row = warp * 16 + lane / 4;
  const auto& values = writes ? space.x : of.y;
  const Bf16* states = writes ? of.d_states : of.states;
  const auto fetch = [&](int i) {
    if (i < heads) {
      const Stage stage(shared + i % 2 * Stage::kBytes);
      const int head = first_head + i;
      stage.values.fetch(at.rows(values, head, kSpaceDims), values.position_stride, at.valid);
      stage.state.fetch(states + at.state(space, head), kState, kSpaceDims);
      if (warp == 0) {
        fetch_times(stage.steps, space.steps + at.times(space, head));
        fetch_times(stage.decays, space.decays + at.times(space, head));
      }
    }
    __pipeline_commit();
  };

  ResultTile result[kTiles] = {};
  fetch(0);
  for (int i = 0; i < heads; ++i) {
    fetch(i + 1);
    __pipeline_wait_prior(1);
    __syncthreads();
    const Stage stage(shared + i % 2 * Stage::kBytes);
    const float end = stage.decays[kSpaceChunk - 1];
    float weights[2];
    for (int half = 0; half < 2; ++half) {
      const int l = row + half * 8;
      const float sum = stage.decays[l];
      weights[half] = writes ? stage.steps[l] * __expf(end - sum) : __expf(sum);
    }
#pragma unroll
    for (int step = 0; step < kSpaceDims; step += 16) {
      auto left = stage.values.left(warp * 16, step);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float2 both = unpacked(left.words[w]);
        left.words[w] = packed(both.x * weights[w % 2], both.y * weights[w % 2]);
      }
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        multiply_add(result + n, left, stage.state.right(step, n * 8));
      }
    }
    __syncthreads();
  }
  float* to = (writes ? of.d_write : of.d_read) +
              ((int64_t{at.sequence} * space.positions + at.first) * space.groups + group) * kState;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int l = row + half * 8;
    if (l >= at.valid) continue;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float* sum = result[n].values + half * 2;
      *reinterpret_cast<float2*>(to + int64_t{l} * space.groups * kState + n * 8 + lane % 4 * 2) = {
          sum[0], sum[1]};
    }
  }
}

}  // namespace

void launch_space_key_gradients(
    const DeviceSpace& space, const DeviceSpaceGradients& of, cudaStream_t stream) {
  const dim3 blocks(space.chunks, space.groups, 2 * space.sequences);
  if (space.state == 128) {
    launch(
        key_gradients_kernel<128>, blocks, kSpaceThreads, 2 * HeadStage<128>::kBytes, stream, space,
        of);
  } else {
    launch(
        key_gradients_kernel<64>, blocks, kSpaceThreads, 2 * HeadStage<64>::kBytes, stream, space,
        of);
  }
}

}  // namespace sherd
