// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace sherd {

/// The inputs of a selective state space (Mamba-2): B sequences, S positions, H heads of P dims, G
/// groups of heads (the first H / G heads are the first group), N numbers of state for each dim.
/// Tensors of sequences may have any strides between positions; a position's elements are dense.
struct StateSpace {
  at::Tensor x;      ///< [B, S, H, P], floating point of 16 bits or more
  at::Tensor step;   ///< [B, S, H]
  at::Tensor write;  ///< [B, S, G, N]
  at::Tensor read;   ///< [B, S, G, N]
  // Of each head, in fp32 (fp64 with fp64).
  at::Tensor step_bias;  ///< [H]
  at::Tensor decay_log;  ///< [H]
  at::Tensor through;    ///< [H]
  int64_t chunk = 128;   ///< positions that are computed as one matrix; changes no result

  int64_t chunks() const { return (x.size(1) + chunk - 1) / chunk; }
};

/// The gradients of a StateSpace; those of sequences strided as the inputs may be.
struct StateSpaceGradients {
  at::Tensor x;
  at::Tensor step;
  at::Tensor write;
  at::Tensor read;
  at::Tensor step_bias;
  at::Tensor decay_log;
  at::Tensor through;
};

/// y of this recurrence, for each sequence and head, from state [P, N] = 0 on:
///   t = softplus(step + step_bias),  state = exp(−t · exp(decay_log)) · state + t · x ⊗ write,
///   y = state · read + through · x.
/// Writes y [B, S, H, P] and the states before each chunk [B, chunks, H, P, N], both dense and in
/// the dtype of x. Math and the recurrence of states are in fp32 (fp64 with fp64), on the current
/// stream. With bf16 on CUDA, products have operands in bf16 and sums in fp32; kernels do it if
/// heads have 64 dims, states 64 or 128 numbers for each, and chunks 128 positions, else torch's
/// operations.
void state_space_forward(const StateSpace& space, const at::Tensor& y, const at::Tensor& states);
/// From the gradient of y. Sums are taken in the same order every time.
void state_space_backward(
    const StateSpace& space,
    const at::Tensor& states,
    const at::Tensor& y_gradient,
    const StateSpaceGradients& result);

}  // namespace sherd
