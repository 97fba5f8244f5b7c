// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// The kernels of a Mamba-2 mixer in bf16, on plain memory; numbers are in fp32 if nothing else is
// said. Pointers are aligned to 16 bytes, strides and widths are multiples of 8 elements.

struct __nv_bfloat16;
struct CUstream_st;

namespace sherd {

using Bf16 = __nv_bfloat16;

/// Positions of sequences, or rows; the elements of each are dense.
struct DeviceRows {
  Bf16* data = nullptr;
  int64_t sequence_stride = 0;
  int64_t position_stride = 0;
};

// ---- causal convolution ------------------------------------------------------------------------

constexpr int kDeviceConvWidth = 4;
constexpr int kConvRun = 64;  ///< positions that a thread of the backward works on

struct DeviceConv {
  DeviceRows x;         ///< [B, S, C]
  const float* filter;  ///< [C, 4]
  const float* bias;    ///< [C]
  int sequences, positions, channels;
};

void launch_conv_forward(const DeviceConv& conv, Bf16* y, CUstream_st* stream);
/// Writes dx and, for each run of a sequence, [B, runs, 5, C]: the gradients of the filter's
/// positions and of the bias.
void launch_conv_backward(
    const DeviceConv& conv, const Bf16* dy, const DeviceRows& dx, float* sums, CUstream_st* stream);

// ---- gated norm --------------------------------------------------------------------------------

struct DeviceGatedNorm {
  const Bf16* x;        ///< [T, D]
  const Bf16* gate;     ///< [T, D], rows `gate_stride` elements apart
  const float* weight;  ///< [D]
  int64_t rows, gate_stride;
  int dim, groups;
  float epsilon;
};
struct DeviceGatedNormGradients {
  const Bf16* dy;  ///< [T, D]
  Bf16* dx;        ///< may be dy
  Bf16* d_gate;    ///< rows `d_gate_stride` elements apart
  Bf16* y;         ///< the forward's result again, or null
  float* sums;     ///< [gated_norm_parts(), D]: the weight's gradient in parts
  int64_t d_gate_stride;
};

constexpr int kMostGatedNorm = 16384;  ///< elements of a group, at most
constexpr int kWarpGatedNorm = 1024;   ///< up to here a warp has a group, else a block
/// Returns how many blocks work on each group in the backward: for all groups together, as many as
/// fill a GPU.
constexpr int gated_norm_blocks(int groups) {
  return groups < 264 ? 264 / groups : 1;
}
/// Returns in how many parts the weight's gradient is found.
constexpr int gated_norm_parts(int dim, int groups) {
  return gated_norm_blocks(groups) * (dim / groups <= kWarpGatedNorm ? 8 : 1);
}
void launch_gated_norm_forward(const DeviceGatedNorm& norm, Bf16* y, CUstream_st* stream);
void launch_gated_norm_backward(
    const DeviceGatedNorm& norm, const DeviceGatedNormGradients& of, CUstream_st* stream);

// ---- state space -------------------------------------------------------------------------------

/// Chunks have 128 positions, heads 64 dims; states have 64 or 128 numbers for each dim.
constexpr int kSpaceChunk = 128;
constexpr int kSpaceDims = 64;

/// A state space; K chunks hold S positions.
struct DeviceSpace {
  DeviceRows x;            ///< [B, S, H, P]
  DeviceRows write;        ///< [B, S, G, N]
  DeviceRows read;         ///< [B, S, G, N]
  DeviceRows raw_step;     ///< [B, S, H], of any alignment
  const float* step_bias;  ///< [H]
  const float* decay_log;  ///< [H]
  const float* through;    ///< [H]
  float* steps;            ///< [B, H, K · 128]: softplus(step + bias); 0 from S on
  float* decays;           ///< [B, H, K · 128]: of each chunk, the sums of decays up to a position
  int sequences, positions, heads, groups, state, chunks;
};

struct DeviceSpaceGradients {
  DeviceRows y;  ///< the gradient of y
  DeviceRows x;
  DeviceRows write;
  DeviceRows read;
  DeviceRows raw_step;
  const Bf16* states;    ///< [B, K, H, P, N], before each chunk
  const Bf16* d_states;  ///< alike: the gradient of the state after it
  float* d_write;        ///< [B, S, G, N]: what comes by way of states
  float* d_read;
  float* sums;  ///< [B, K, 3, H]: gradients of bias, decay_log and through, of each chunk
};

/// Writes `steps` and `decays`.
void launch_space_steps(const DeviceSpace& space, CUstream_st* stream);
/// Writes the state before each chunk, [B, K, H, P, N].
void launch_space_states(const DeviceSpace& space, Bf16* states, CUstream_st* stream);
/// Writes y from these states.
void launch_space_outputs(
    const DeviceSpace& space, const Bf16* states, const DeviceRows& y, CUstream_st* stream);
/// Writes the gradient of the state after each chunk.
void launch_space_state_gradients(
    const DeviceSpace& space, const DeviceRows& y_gradient, Bf16* d_states, CUstream_st* stream);
/// Writes d_write and d_read.
void launch_space_key_gradients(
    const DeviceSpace& space, const DeviceSpaceGradients& of, CUstream_st* stream);
/// Writes the rest: x, write, read, raw_step, and `sums`.
void launch_space_gradients(
    const DeviceSpace& space, const DeviceSpaceGradients& of, CUstream_st* stream);

}  // namespace sherd
