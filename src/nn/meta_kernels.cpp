// SPDX-License-Identifier: Apache-2.0
// Shapes of operations that libtorch has no word for on the meta device (Python's torch has). With
// them a model can be rehearsed without memory.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

namespace sherd {
namespace {

at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  auto sizes = self.sizes().vec();
  if (!sizes.empty()) sizes[static_cast<size_t>(dim < 0 ? dim + self.dim() : dim)] = index.numel();
  return at::empty(sizes, self.options());
}

at::Tensor embedding_dense_backward(
    const at::Tensor& gradient, const at::Tensor&, c10::SymInt rows, c10::SymInt, bool) {
  return at::empty({rows.expect_int(), gradient.size(-1)}, gradient.options());
}

at::Tensor grouped_mm(
    const at::Tensor& a,
    const at::Tensor& b,
    const std::optional<at::Tensor>& ends,
    const std::optional<at::Tensor>&,
    std::optional<at::ScalarType> dtype) {
  const auto options = a.options().dtype(dtype.value_or(a.scalar_type()));
  if (a.dim() == 2 && b.dim() == 2) {
    return at::empty({ends->numel(), a.size(0), b.size(1)}, options);
  }
  if (a.dim() == 2) return at::empty({a.size(0), b.size(2)}, options);
  if (b.dim() == 2) return at::empty({a.size(1), b.size(1)}, options);
  return at::empty({a.size(0), a.size(1), b.size(2)}, options);
}

/// Of one dim, which is all that is used here.
at::Tensor convolution(
    const at::Tensor& input,
    const at::Tensor& weight,
    const std::optional<at::Tensor>&,
    c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation,
    bool,
    c10::SymIntArrayRef,
    c10::SymInt) {
  const int64_t reach = dilation[0].expect_int() * (weight.size(2) - 1) + 1;
  const int64_t length =
      (input.size(2) + 2 * padding[0].expect_int() - reach) / stride[0].expect_int() + 1;
  return at::empty({input.size(0), weight.size(0), length}, input.options());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient,
    const at::Tensor& input,
    const at::Tensor& weight,
    at::OptionalSymIntArrayRef,
    c10::SymIntArrayRef,
    c10::SymIntArrayRef,
    c10::SymIntArrayRef,
    bool,
    c10::SymIntArrayRef,
    c10::SymInt,
    std::array<bool, 3> wanted) {
  return {
      wanted[0] ? at::empty_like(input) : at::Tensor(),
      wanted[1] ? at::empty_like(weight) : at::Tensor(),
      wanted[2] ? at::empty({gradient.size(1)}, gradient.options()) : at::Tensor()};
}

at::Tensor flip(const at::Tensor& self, at::IntArrayRef) {
  return at::empty_like(self);
}

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("flip", TORCH_FN(flip));
  library.impl("index_select", TORCH_FN(index_select));
  library.impl("embedding_dense_backward", TORCH_FN(embedding_dense_backward));
  library.impl("_grouped_mm", TORCH_FN(grouped_mm));
  library.impl("convolution", TORCH_FN(convolution));
  library.impl("convolution_backward", TORCH_FN(convolution_backward));
}

}  // namespace
}  // namespace sherd
