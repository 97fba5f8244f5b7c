// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sherd/export.h"
#include "sherd/plan/network.h"

namespace sherd {

/// The kinds of exchanges of activations: the operations of `Exchange` (sherd/nn/exchange.h).
enum class ExchangeKind : uint8_t {
  gather_rows,
  scatter_sum,
  all_to_all,
  all_to_all_dims,
  sum_numbers,
  exchange_counts,
};
inline constexpr size_t kExchangeKinds = 6;

/// The part of a step in which an exchange happens. A recompute repeats those of its forward.
enum class ExchangePass : uint8_t { forward, recompute, backward };

/// One exchange of activations between the ranks along a mesh axis, in a call of a unit.
struct ExchangeSpec {
  ExchangeKind kind{};
  ExchangePass pass{};
  std::string axis;     ///< mesh axis
  std::string purpose;  ///< what the Exchange is for
  int64_t ranks = 1;    ///< number of ranks along the axis
  int64_t bytes = 0;    ///< full side, as in wire_bytes(); the mean if `routed`
  bool routed = false;  ///< the length depends on routing
  friend bool operator==(const ExchangeSpec&, const ExchangeSpec&) = default;
};

/// The exchanges of one call of a unit, in order: those of the forward come first.
using CallExchanges = std::vector<ExchangeSpec>;

SHERD_API const char* to_text(ExchangeKind kind);
SHERD_API const char* to_text(ExchangePass pass);
/// Returns the collective that an exchange runs.
SHERD_API Collective collective_of(ExchangeKind kind);
/// Returns the exchange as one line: kind, axis, number of ranks, purpose and bytes.
SHERD_API std::string to_text(const ExchangeSpec& exchange);
/// Returns the seconds that an exchange takes on the network of its axis.
SHERD_API double seconds(const Network& network, const ExchangeSpec& exchange);

/// Returns calls as text that read_exchanges() reads.
SHERD_API std::string write_exchanges(const std::vector<CallExchanges>& calls);
/// Reads what write_exchanges() wrote. Throws std::runtime_error for other text.
SHERD_API std::vector<CallExchanges> read_exchanges(const std::string& text);

}  // namespace sherd
