// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "sherd/export.h"
#include "sherd/plan/layout.h"

namespace sherd {

/// How a buffer is distributed over one mesh axis.
enum class Spread : uint8_t {
  replicate,  ///< every rank holds the same values
  shard,      ///< each rank holds its own part
  partial,    ///< each rank holds its own contribution, to be summed over the axis
};

/// The buffers of a group: the model weight, the main gradient, and what the optimizer updates (the
/// main weight and its moments).
enum class Role : uint8_t { parameter, gradient, optimizer };

/// The usual degrees of sharding over one axis: none (plain data parallelism), then optimizer
/// state, gradients and parameters (ZeRO-1, 2 and 3).
enum class Strategy : uint8_t { no_shard, optim, optim_grads, optim_grads_params };

SHERD_API std::string to_text(Spread spread);
SHERD_API std::string to_text(Role role);
SHERD_API std::string to_text(Strategy strategy);
/// Returns the strategy with this name. Throws std::invalid_argument, with the known names, for
/// another.
SHERD_API Strategy strategy_from(const std::string& word);

/// A value for each data-parallel axis. Most meshes have one, `inner`; HSDP (hybrid sharding) and
/// HFSDP add `outer`.
template <class T>
struct PerAxis {
  T inner{};
  T outer{};
  friend bool operator==(const PerAxis&, const PerAxis&) = default;
};

/// The distribution of one buffer over both axes.
using Spreads = PerAxis<Spread>;

SHERD_API std::string to_text(const Spreads& spreads);

/// Throws std::invalid_argument for spreads that no buffer can have: a buffer that is sharded over
/// the outer axis must be sharded over the inner one too, because the inner axis is cut first.
SHERD_API void check_spreads(const Spreads& spreads);

/// Returns the part of a buffer with these spreads that a rank holds. The buffer is cut over the
/// inner axis first, and each of those parts over the outer axis, so that a gather over the outer
/// axis yields one contiguous inner part. Throws as check_spreads() does, and for sizes below 1 and
/// coordinates outside the axes.
SHERD_API Part part_of(
    const Spreads& spreads,
    const PerAxis<int64_t>& axis_sizes,
    const PerAxis<int64_t>& coordinates);

/// The choice between shard and replicate for each role and data-parallel axis.
class SHERD_API Placement {
 public:
  /// The spreads of all roles.
  struct Roles {
    Spreads parameter;
    Spreads gradient;
    Spreads optimizer;
  };

  /// Makes a placement from a strategy for each axis. HSDP is (optim_grads_params, no_shard), HFSDP
  /// is (optim_grads_params, optim). Throws as the other constructor does.
  explicit Placement(Strategy inner, Strategy outer = Strategy::no_shard);
  /// Makes a placement from the spread of each role. Throws std::invalid_argument, naming role and
  /// axis, unless on each axis the optimizer is sharded wherever the gradient is, and the gradient
  /// wherever the parameter is, and each role that is sharded over the outer axis is sharded over
  /// the inner one. Partial is not allowed.
  explicit Placement(const Roles& roles);

  const Spreads& spreads(Role role) const;
  /// Returns the number of shards for the group's layout: the largest number of parts that a role
  /// is cut into.
  int64_t shards(const PerAxis<int64_t>& axis_sizes) const;
  std::string to_text() const;

  friend bool operator==(const Placement&, const Placement&) = default;

 private:
  PerAxis<Spread> parameter_;
  PerAxis<Spread> gradient_;
  PerAxis<Spread> optimizer_;
};

}  // namespace sherd
