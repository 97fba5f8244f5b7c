// SPDX-License-Identifier: Apache-2.0
// Shapes as in state_space.h; L = 128 positions of a chunk.
#include "kernels/nn/state_space_device.cuh"

namespace sherd {
namespace {

template <int kState>
constexpr int kOutputShared =
    std::max(2 * HeadStage<kState>::kBytes, 2 * SharedTile<kSpaceChunk, kState>::kBytes);

/// A block has a chunk and the heads of a group, one after the other; a warp has 16 positions. The
/// products read · write are the same for all of these heads and stay in registers.
template <int kState>
__global__ void __launch_bounds__(kSpaceThreads)
    outputs_kernel(const DeviceSpace space, const Bf16* states, const DeviceRows y) {
  extern __shared__ __align__(128) char shared[];
  using Stage = HeadStage<kState>;
  using Keys = SharedTile<kSpaceChunk, kState>;
  constexpr int kSteps = kSpaceChunk / 16;
  constexpr int kTiles = kSpaceDims / 8;
  const ChunkPlace at(space, blockIdx.x, blockIdx.z);
  const int group = blockIdx.y, heads = space.heads / space.groups, first_head = group * heads;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  // Positions see those before them: the warps of a scheduler (w and w + 4) have equal work
  // together.
  const int strip = warp < 4 ? warp : 11 - warp;
  const int row = strip * 16 + lane / 4;  // of two: this one and row + 8

  LeftTile read[kState / 16];
  ResultTile scores[kSteps][2] = {};
  {
    const Keys reads(shared), writes(shared + Keys::kBytes);
    reads.fetch(at.rows(space.read, group, kState), space.read.position_stride, at.valid);
    writes.fetch(at.rows(space.write, group, kState), space.write.position_stride, at.valid);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kState / 16; ++k) read[k] = reads.left(strip * 16, k * 16);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step > strip) continue;
#pragma unroll
      for (int k = 0; k < kState / 16; ++k) {
        multiply_add(scores[step], read[k], writes.right_of_rows(step * 16, k * 16));
      }
    }
    __syncthreads();
  }

  const auto fetch = [&](int i) {
    if (i < heads) {
      const Stage stage(shared + i % 2 * Stage::kBytes);
      const int head = first_head + i;
      stage.values.fetch(at.rows(space.x, head, kSpaceDims), space.x.position_stride, at.valid);
      stage.state.fetch(states + at.state(space, head), kState, kSpaceDims);
      if (warp == 0) {
        fetch_times(stage.steps, space.steps + at.times(space, head));
        fetch_times(stage.decays, space.decays + at.times(space, head));
      }
    }
    __pipeline_commit();
  };
  fetch(0);
  for (int i = 0; i < heads; ++i) {
    fetch(i + 1);
    __pipeline_wait_prior(1);
    __syncthreads();
    const Stage stage(shared + i % 2 * Stage::kBytes);
    const float sums[2] = {stage.decays[row], stage.decays[row + 8]};
    const float faded[2] = {__expf(sums[0]), __expf(sums[1])};

    ResultTile result[kTiles] = {};
#pragma unroll
    for (int k = 0; k < kState / 16; ++k) {
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        multiply_add(result + n, read[k], stage.state.right_of_rows(n * 8, k * 16));
      }
    }
#pragma unroll
    for (auto& tile : result) {
      for (int e = 0; e < 4; ++e) tile.values[e] *= faded[e / 2];
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step > strip) continue;
      ResultTile weights[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int s = step * 16 + h * 8 + lane % 4 * 2 + e % 2;
          const float fade = __expf(sums[e / 2] - stage.decays[s]) * stage.steps[s];
          weights[h].values[e] = s <= row + e / 2 * 8 ? scores[step][h].values[e] * fade : 0.0f;
        }
      }
      const auto left = as_left(weights);
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        multiply_add(result + n, left, stage.values.right(step * 16, n * 8));
      }
    }
    const float through = space.through[first_head + i];
    Bf16* to = at.rows(y, first_head + i, kSpaceDims);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int l = row + half * 8;
      if (l >= at.valid) continue;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int column = n * 8 + lane % 4 * 2;
        const float2 x = unpacked(stage.values.pair(l, column));
        const float* sum = result[n].values + half * 2;
        *reinterpret_cast<uint32_t*>(to + l * y.position_stride + column) =
            packed(sum[0] + through * x.x, sum[1] + through * x.y);
      }
    }
    __syncthreads();
  }
}

}  // namespace

void launch_space_outputs(
    const DeviceSpace& space, const Bf16* states, const DeviceRows& y, cudaStream_t stream) {
  const dim3 blocks(space.chunks, space.groups, space.sequences);
  if (space.state == 128) {
    launch(
        outputs_kernel<128>, blocks, kSpaceThreads, kOutputShared<128>, stream, space, states, y);
  } else {
    launch(outputs_kernel<64>, blocks, kSpaceThreads, kOutputShared<64>, stream, space, states, y);
  }
}

}  // namespace sherd
