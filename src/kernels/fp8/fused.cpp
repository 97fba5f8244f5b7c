// SPDX-License-Identifier: Apache-2.0
#include "kernels/fp8/fused.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>

namespace sherd {
namespace {
// On CPU torch's operations do the math, in fp32.

Fp8Matrix empty_rows(const at::Tensor& like, int64_t rows, int64_t columns) {
  return {
      at::empty({rows, columns}, like.options().dtype(at::kFloat8_e4m3fn)),
      at::empty({rows}, like.options().dtype(at::kFloat)), Scaling::row};
}

Fp8Matrix empty_columns(const at::Tensor& like, int64_t rows, int64_t columns) {
  constexpr int64_t kTensorCoreRows = 16;
  return {
      at::empty({columns, padded(rows, kTensorCoreRows)}, like.options().dtype(at::kFloat8_e4m3fn)),
      {},
      Scaling::tensor};
}

at::Tensor normed(const at::Tensor& sum, const at::Tensor& weight, const at::Tensor& scale) {
  return (sum.to(at::kFloat) * scale.unsqueeze(1)) * weight.to(at::kFloat);
}

struct Swiglu {
  at::Tensor gate, up, open, silu;
  explicit Swiglu(const at::Tensor& gate_up) {
    const auto halves = gate_up.to(at::kFloat).chunk(2, -1);
    gate = halves[0];
    up = halves[1];
    open = at::sigmoid(gate);
    silu = gate * open;
  }
};

}  // namespace

NormedFp8 encode_normed(
    const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double epsilon) {
  if (x.is_meta() || x.is_cuda()) {
    NormedFp8 result{
        residual.defined() ? at::empty_like(x) : x,
        at::empty({x.size(0)}, x.options().dtype(at::kFloat)), empty_rows(x, x.size(0), x.size(1))};
    if (x.is_cuda()) encode_normed_on_cuda(x, residual, weight, epsilon, result);
    return result;
  }
  NormedFp8 result;
  result.sum =
      residual.defined() ? (x.to(at::kFloat) + residual.to(at::kFloat)).to(x.scalar_type()) : x;
  const auto wide = result.sum.to(at::kFloat);
  result.scale = (wide * wide).mean(-1).add_(epsilon).rsqrt_();
  result.rows = encode_rows(normed(result.sum, weight, result.scale), Scaling::row);
  return result;
}

Fp8Matrix encode_normed_again(
    const at::Tensor& sum,
    const at::Tensor& weight,
    const at::Tensor& scale,
    const Fp8Gradient& gradient) {
  if (sum.is_meta() || sum.is_cuda()) {
    auto result = empty_columns(sum, sum.size(0), sum.size(1));
    result.scales = gradient.bound;
    if (sum.is_cuda()) encode_normed_again_on_cuda(sum, weight, scale, gradient, result);
    return result;
  }
  return encode_input_again(normed(sum, weight, scale), gradient);
}

Fp8Matrix encode_swiglu(const at::Tensor& gate_up) {
  if (gate_up.is_meta() || gate_up.is_cuda()) {
    auto result = empty_rows(gate_up, gate_up.size(0), gate_up.size(1) / 2);
    if (gate_up.is_cuda()) encode_swiglu_on_cuda(gate_up, result);
    return result;
  }
  const Swiglu parts(gate_up);
  return encode_rows(parts.silu * parts.up, Scaling::row);
}

SwigluGradients encode_swiglu_gradients(
    const at::Tensor& d_activation,
    const at::Tensor& gate_up,
    const Fp8Gradient& gradient,
    const at::Tensor& input_scales) {
  if (gate_up.is_meta() || gate_up.is_cuda()) {
    const int64_t rows = gate_up.size(0), width = gate_up.size(1);
    SwigluGradients result{
        {empty_rows(gate_up, rows, width), empty_columns(gate_up, rows, width),
         at::empty({1}, gate_up.options().dtype(at::kFloat))},
        empty_columns(gate_up, rows, width / 2)};
    result.activation.scales = gradient.bound;
    if (gate_up.is_cuda()) {
      encode_swiglu_gradients_on_cuda(d_activation, gate_up, gradient, input_scales, result);
    }
    return result;
  }
  const Swiglu parts(gate_up);
  const auto incoming = d_activation.to(at::kFloat);
  const auto d_gate = incoming * parts.up * parts.open * (1 + parts.gate - parts.silu);
  const auto d_up = incoming * parts.silu;
  return {
      encode_gradient(at::cat({d_gate, d_up}, -1), input_scales),
      encode_input_again(parts.silu * parts.up, gradient)};
}

}  // namespace sherd
