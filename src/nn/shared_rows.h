// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

#include "sherd/nn/exchange.h"

namespace sherd {

/// The rows, along dim −2, that ranks have equal parts of (NormOptions::ranks), inside an autograd
/// function: no gradients flow. Without ranks every function returns its argument.
class SharedRows {
 public:
  explicit SharedRows(std::optional<Exchange> ranks) : ranks_(std::move(ranks)) {
    if (ranks_ && ranks_->size() == 1) ranks_.reset();
  }
  /// Restores what keep() kept.
  explicit SharedRows(torch::autograd::AutogradContext& context) {
    const auto& kept = context.saved_data["shared_rows"];
    if (kept.isNone()) return;
    ranks_ = c10::static_intrusive_pointer_cast<Kept>(kept.toCapsule())->ranks;
  }
  void keep(torch::autograd::AutogradContext& context) const {
    context.saved_data["shared_rows"] =
        ranks_ ? c10::IValue::make_capsule(c10::make_intrusive<Kept>(*ranks_)) : c10::IValue();
  }

  /// Returns whether other ranks have rows, too.
  bool are_shared() const { return ranks_.has_value(); }
  /// Returns this rank's rows and those of the others.
  at::Tensor gather(const at::Tensor& x) const { return ranks_ ? ranks_->gather_rows(x, -2) : x; }
  /// The same of several tensors in one operation.
  std::vector<at::Tensor> gather(at::TensorList tensors) const {
    return ranks_ ? ranks_->gather_rows_together(tensors, -2) : tensors.vec();
  }
  /// Returns this rank's rows of the sum over the ranks.
  at::Tensor scatter_sum(const at::Tensor& x) const {
    return ranks_ ? ranks_->scatter_sum(x, -2) : x;
  }
  /// Returns a gradient; with ranks, zeros of these sizes where it is undefined: the other ranks
  /// wait for what is exchanged of it.
  at::Tensor present(
      const at::Tensor& gradient,
      std::vector<int64_t> sizes,
      int64_t last,
      const at::TensorOptions& options) const {
    if (gradient.defined() || !ranks_) return gradient;
    sizes.back() = last;
    return at::zeros(sizes, options);
  }
  /// Returns the sizes that rows of these sizes have once they are gathered.
  std::vector<int64_t> gathered_sizes(const at::Tensor& x) const {
    return gathered_sizes(x.sizes().vec());
  }
  std::vector<int64_t> gathered_sizes(std::vector<int64_t> sizes) const {
    if (ranks_) sizes[sizes.size() - 2] *= ranks_->size();
    return sizes;
  }

 private:
  struct Kept : torch::CustomClassHolder {
    explicit Kept(Exchange exchange) : ranks(std::move(exchange)) {}
    Exchange ranks;
  };
  std::optional<Exchange> ranks_;
};

}  // namespace sherd
