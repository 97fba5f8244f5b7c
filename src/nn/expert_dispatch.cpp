// SPDX-License-Identifier: Apache-2.0
// Shapes: N ranks, E experts of all ranks, L = E / N experts of each, R rows.
#include "nn/expert_dispatch.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>

#include <numeric>
#include <utility>

namespace sherd {
namespace {

/// Returns the numbers of rows between ends.
at::Tensor counts_of(const at::Tensor& end_E) {
  const auto begin_E = at::cat({at::zeros({1}, end_E.options()), end_E.slice(0, 0, -1)});
  return (end_E - begin_E).to(at::kLong);
}

/// Returns for each row, in the order of experts, its number among those that arrive: the ranks'
/// rows one after another, each sorted by expert. Does not wait.
at::Tensor order_of_arrivals(const at::Tensor& counts_NL, int64_t rows) {
  const int64_t ranks = counts_NL.size(0), experts = counts_NL.size(1);
  const auto expert_NL = at::arange(experts, counts_NL.options()).repeat({ranks});
  const auto expert_R = at::repeat_interleave(expert_NL, counts_NL.flatten(), 0, rows);
  return std::get<1>(at::sort(expert_R, /*stable=*/std::optional<bool>(true), /*dim=*/0));
}

}  // namespace

ExpertDispatch::ExpertDispatch(
    const std::optional<Exchange>& ranks, const at::Tensor& end_E, int64_t rows)
    : ends_(end_E) {
  if (!ranks || ranks->size() == 1) return;
  const int64_t count = ranks->size(), experts = end_E.size(0) / count;
  auto counts = ranks->exchange_counts(counts_of(end_E).view({count, experts}), rows);
  if (end_E.is_meta()) {
    order_ = at::empty({rows}, end_E.options().dtype(at::kLong));
    ends_ = at::empty({experts}, end_E.options());
  } else {
    const auto& [arriving_NL, sent, received] = counts;
    const auto arrivals = std::accumulate(received.begin(), received.end(), int64_t{0});
    order_ = order_of_arrivals(arriving_NL, arrivals);
    ends_ = arriving_NL.sum(0).cumsum(0).to(at::kInt);
  }
  route_ = c10::make_intrusive<Route>(*ranks, std::move(counts), rows);
}

at::Tensor ExpertDispatch::to_experts(const at::Tensor& rows) const {
  if (!moves()) return rows;
  const auto arrived =
      route_->exchange.all_to_all(rows, route_->sent, route_->received, route_->mean_rows);
  return arrived.index_select(0, order_);
}

at::Tensor ExpertDispatch::from_experts(const at::Tensor& rows) const {
  if (!moves()) return rows;
  const auto leaving = at::empty_like(rows).index_copy_(0, order_, rows);
  return route_->exchange.all_to_all(leaving, route_->received, route_->sent, route_->mean_rows);
}

}  // namespace sherd
