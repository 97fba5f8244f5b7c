// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "sherd/nn/exchange.h"

namespace sherd {

/// The way of rows from the tokens' ranks to the experts' ranks, and back (expert parallelism). At
/// the tokens, R rows are sorted by all E experts; at the experts, those that arrive are sorted by
/// this rank's experts, and for one expert by the ranks that they come from. If all experts are
/// here, rows stay where they are.
class ExpertDispatch {
 public:
  /// What an autograd function keeps for its backward, besides the tensors.
  struct Route : torch::CustomClassHolder {
    Route(Exchange ranks, ExchangedCounts counts, int64_t rows)
        : exchange(std::move(ranks)),
          sent(std::move(counts.sent_rows)),
          received(std::move(counts.received_rows)),
          mean_rows(rows) {}
    Exchange exchange;
    std::vector<int64_t> sent;      // rows that go to each rank
    std::vector<int64_t> received;  // rows that come from each rank
    int64_t mean_rows;              // of this rank's tokens: as many arrive in the mean
  };

  /// `end_E`: one past the last row of each of all E experts. With several ranks they exchange how
  /// many rows each expert gets, and the host waits for it; on the meta device all ranks get
  /// equally many.
  ExpertDispatch(const std::optional<Exchange>& ranks, const at::Tensor& end_E, int64_t rows);
  /// Restores one from what was kept.
  ExpertDispatch(c10::intrusive_ptr<Route> route, at::Tensor order, at::Tensor ends)
      : route_(std::move(route)), order_(std::move(order)), ends_(std::move(ends)) {}

  /// Moves rows, [R, ..], to the ranks of their experts. Collective.
  at::Tensor to_experts(const at::Tensor& rows) const;
  /// Moves rows of this rank's experts back to their tokens. Collective.
  at::Tensor from_experts(const at::Tensor& rows) const;

  /// Returns whether rows move at all.
  bool moves() const { return route_ != nullptr; }
  /// Returns one past the last row of each of this rank's experts, int32.
  const at::Tensor& ends() const { return ends_; }
  /// Returns, for each row at the experts, its number among those that arrive; undefined if none
  /// move.
  const at::Tensor& order() const { return order_; }
  /// Null if no rows move.
  const c10::intrusive_ptr<Route>& route() const { return route_; }

 private:
  c10::intrusive_ptr<Route> route_;
  at::Tensor order_;
  at::Tensor ends_;
};

}  // namespace sherd
