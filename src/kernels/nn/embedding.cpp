// SPDX-License-Identifier: Apache-2.0
#include "kernels/nn/embedding.h"

#include <ATen/ops/sort.h>

#include <optional>
#include <vector>

#include "kernels/cast_types.h"

namespace sherd {
namespace {

template <class T>
void add_up(const EmbeddingGradient& work, const at::Tensor& sorted, const at::Tensor& order) {
  using Math = CastMath<T, T>;
  const int64_t count = sorted.numel();
  const int64_t dim = work.gradient.size(1);
  const auto* tokens = sorted.const_data_ptr<int64_t>();
  const auto* rows = order.const_data_ptr<int64_t>();
  auto* target = static_cast<char*>(work.target.mutable_data_ptr());
  const auto size = static_cast<int64_t>(work.target.element_size());
  std::vector<Math> sum(static_cast<size_t>(dim));
  const auto math = sizeof(Math) == sizeof(double) ? c10::kDouble : c10::kFloat;
  for (int64_t begin = 0, end = 0; begin < count; begin = end) {
    std::fill(sum.begin(), sum.end(), Math(0));
    for (; end < count && tokens[end] == tokens[begin]; ++end) {
      const auto* row = work.gradient.const_data_ptr<T>() + rows[end] * dim;
      for (int64_t i = 0; i < dim; ++i) sum[static_cast<size_t>(i)] += static_cast<Math>(row[i]);
    }
    const CastCopy one{target + tokens[begin] * dim * size, sum.data(), dim, work.add};
    cast_copy({&one, 1}, {work.target.scalar_type(), math}, c10::kCPU);
  }
}

}  // namespace

void embedding_gradient(const EmbeddingGradient& work) {
  if (!work.add) work.target.zero_();
  if (work.gradient.numel() == 0) return;
  const auto [sorted, order] =
      at::sort(work.tokens, /*stable=*/std::optional<bool>(true), /*dim=*/0);
  if (work.gradient.is_meta()) return;
  if (work.gradient.is_cuda()) return embedding_gradient_on_cuda(work, sorted, order);
  with_float_type(
      work.gradient.scalar_type(), [&](auto type) { add_up<decltype(type)>(work, sorted, order); });
}

}  // namespace sherd
