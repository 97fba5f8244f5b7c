// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "sherd/comm/communicator.h"
#include "sherd/plan/exchange.h"

namespace sherd {

class Runtime;

/// An exchange of activations that a module is about to make, along an axis of several ranks.
struct ExchangeCall {
  ExchangeKind kind{};
  Communicator* communicator = nullptr;
  std::span<const int64_t> world_ranks{};  ///< those along the axis
  std::shared_ptr<const void> owner{};     ///< keeps the communicator
  const std::string& axis;
  const std::string& purpose;
  /// This rank's. Ranks along the axis must agree on dtypes and shapes, but for the rows of
  /// all_to_all, dim 0.
  at::TensorList tensors{};
  int64_t bytes = 0;    ///< see ExchangeSpec
  bool routed = false;  ///< see ExchangeSpec
  /// all_to_all: rows for and from each rank.
  std::span<const int64_t> sent{};
  std::span<const int64_t> received{};

  bool is_meta() const { return tensors.front().is_meta(); }
  /// Returns the sizes of a tensor that ranks must agree on.
  at::IntArrayRef agreed_sizes(const at::Tensor& tensor) const {
    return tensor.sizes().slice(kind == ExchangeKind::all_to_all ? 1 : 0);
  }
};

/// Makes an exchange: `send` starts it and waits for it, and is not called on the meta device. If a
/// pass of a model is under way on this thread, the exchange is one of the innermost unit's: the
/// pass records it, and the ranks along the axis compare it first unless it is known from an
/// earlier pass (see ExchangeTracker). Throws on all these ranks if they differ.
void make_exchange(const ExchangeCall& call, c10::function_ref<void()> send);

/// From now on exchanges on this thread belong to this runtime, while it is in a pass.
void set_at_work(const std::shared_ptr<Runtime>& runtime);

}  // namespace sherd
