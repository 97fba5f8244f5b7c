// SPDX-License-Identifier: Apache-2.0
#include "kernels/nn/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/scatter_add.h>

#include "kernels/widened.h"

namespace sherd {
namespace {

/// [rows, 1]; those that count for nothing name any class.
at::Tensor classes(const at::Tensor& targets) {
  return targets.clamp_min(0).unsqueeze(1);
}

/// (softmax − one-hot) · factor.
void write_gradients(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const at::Tensor& log_sums,
    const at::Tensor& factor) {
  const auto gradients = (widened(logits) - log_sums.unsqueeze(1)).exp_();
  const auto chosen = classes(targets);
  gradients.scatter_add_(1, chosen, at::full_like(log_sums, -1).unsqueeze(1));
  auto weights = (targets >= 0).to(gradients.scalar_type());
  if (factor.defined()) weights = weights * factor;
  logits.copy_(gradients.mul_(weights.unsqueeze(1)));
}

}  // namespace

// On CPU torch's own operations do it: their exponentials are vector code.

void cross_entropy_forward(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const at::Tensor& losses,
    const at::Tensor& log_sums,
    bool into_gradients) {
  if (logits.is_meta()) return;
  if (logits.is_cuda()) {
    return cross_entropy_forward_on_cuda(logits, targets, losses, log_sums, into_gradients);
  }
  const auto wide = widened(logits);
  log_sums.copy_(at::logsumexp(wide, 1));
  losses.copy_((log_sums - at::gather(wide, 1, classes(targets)).squeeze(1)).mul_(targets >= 0));
  if (into_gradients) write_gradients(logits, targets, log_sums, {});
}

void cross_entropy_backward(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const at::Tensor& log_sums,
    const at::Tensor& factor) {
  if (logits.is_meta()) return;
  if (logits.is_cuda()) {
    return cross_entropy_backward_on_cuda(logits, targets, log_sums, factor);
  }
  write_gradients(logits, targets, log_sums, factor);
}

}  // namespace sherd
