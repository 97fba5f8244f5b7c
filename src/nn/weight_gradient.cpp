// SPDX-License-Identifier: Apache-2.0
#include "nn/weight_gradient.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

namespace sherd {

void write_weight_gradient(
    const GradientTarget& target, const at::Tensor& gradient, const at::Tensor& input) {
  auto buffer = target.buffer;
  if (buffer.is_meta()) return;
  const auto dtype = buffer.scalar_type();
  const double beta = target.overwrite ? 0 : 1;
  if (dtype == input.scalar_type() && target.overwrite) {
    at::mm_out(buffer, gradient.t(), input);
  } else if (dtype == input.scalar_type()) {
    at::addmm_out(buffer, buffer, gradient.t(), input, beta, 1);
  } else if (buffer.is_cuda() && dtype == at::kFloat) {
    // One product of 16-bit operands that accumulates in fp32.
    at::addmm_out(buffer, buffer, gradient.t(), input, dtype, beta, 1);
  } else {
    at::addmm_out(buffer, buffer, gradient.to(dtype).t(), input.to(dtype), beta, 1);
  }
}

at::Tensor weight_gradient(
    const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& input) {
  const auto target = gradient_target(weight);
  if (!target) return at::mm(gradient.t(), input);
  write_weight_gradient(*target, gradient, input);
  return {};
}

void refuse_second_derivative(const char* operation) {
  TORCH_CHECK(
      !c10::GradMode::is_enabled(), "[nn] ", operation,
      " has no second derivative: call backward without create_graph, or use torch's operations");
}

}  // namespace sherd
