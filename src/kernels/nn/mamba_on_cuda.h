// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/nn/causal_conv.h"
#include "kernels/nn/gated_norm.h"
#include "kernels/nn/state_space.h"

namespace sherd {

// A Mamba-2 mixer in bf16 in CUDA memory, by the kernels of mamba_device.h. What they need beside
// their results is given.

void causal_conv_forward_on_cuda(const CausalConv& conv, const at::Tensor& y);
/// `sums` is [B · runs, width + 1, C], for runs of kConvRun positions.
void causal_conv_backward_on_cuda(
    const CausalConv& conv,
    const at::Tensor& y_gradient,
    const at::Tensor& x_gradient,
    const at::Tensor& sums);

void gated_norm_forward_on_cuda(const GatedNorm& norm, const at::Tensor& y);
/// `sums` is [gated_norm_parts(), D].
void gated_norm_backward_on_cuda(
    const GatedNorm& norm,
    const at::Tensor& y_gradient,
    const GatedNormGradients& result,
    const at::Tensor& sums);

/// Each [B, H, K · kSpaceChunk], for K chunks.
struct StateSpaceTimes {
  at::Tensor steps;
  at::Tensor decays;
};
struct StateSpaceScratch {
  at::Tensor d_states;  ///< as the states
  at::Tensor d_write;   ///< [B, S, G, N]
  at::Tensor d_read;
  at::Tensor sums;  ///< [B · K, 3, H]
};
void state_space_forward_on_cuda(
    const StateSpace& space,
    const StateSpaceTimes& times,
    const at::Tensor& y,
    const at::Tensor& states);
void state_space_backward_on_cuda(
    const StateSpace& space,
    const StateSpaceTimes& times,
    const at::Tensor& states,
    const at::Tensor& y_gradient,
    const StateSpaceScratch& scratch,
    const StateSpaceGradients& result);

}  // namespace sherd
