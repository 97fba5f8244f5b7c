// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "sherd/export.h"
#include "sherd/plan/layout.h"

namespace sherd {

/// How a buffer is spread over one axis of the mesh.
enum class Spread : uint8_t {
  replicate,  ///< every rank holds the same values
  shard,      ///< each rank holds its part
  partial,    ///< each rank holds its own contribution; the sum over the axis is still owed
};

/// What a group keeps: what the model computes with, what gradients accumulate into, and what the
/// optimizer updates (main weight and its states).
enum class Role : uint8_t { parameter, gradient, optimizer };

/// The usual degrees of sharding over one axis: ZeRO-0, 1, 2 and 3.
enum class Strategy : uint8_t { no_shard, optim, optim_grads, optim_grads_params };

SHERD_API std::string to_text(Spread spread);
SHERD_API std::string to_text(Role role);
SHERD_API std::string to_text(Strategy strategy);
/// Throws std::invalid_argument naming the legal words.
SHERD_API Strategy strategy_from(const std::string& word);

/// A value per data-parallel axis. Most meshes have one, `inner`; HSDP and HFSDP add `outer`.
template <class T>
struct PerAxis {
  T inner{};
  T outer{};
  friend bool operator==(const PerAxis&, const PerAxis&) = default;
};

/// The spread of one buffer over both axes.
using Spreads = PerAxis<Spread>;

SHERD_API std::string to_text(const Spreads& spreads);

/// Throws std::invalid_argument, in words, for spreads that no buffer can have: with the inner axis
/// major, a buffer that is sharded over the outer axis is sharded over the inner one too.
SHERD_API void check_spreads(const Spreads& spreads);

/// Which part of a buffer with these spreads a rank holds. The inner axis is major: the buffer is
/// cut over the inner axis first, and each of those parts over the outer axis, so that a gather
/// over the outer axis yields one contiguous inner part.
SHERD_API Part part_of(
    const Spreads& spreads,
    const PerAxis<int64_t>& axis_sizes,
    const PerAxis<int64_t>& coordinates);

/// Per role and data-parallel axis: replicate or shard.
class SHERD_API Placement {
 public:
  struct Roles {
    Spreads parameter;
    Spreads gradient;
    Spreads optimizer;
  };

  /// A strategy per axis. HSDP is (optim_grads_params, no_shard), HFSDP (optim_grads_params,
  /// optim).
  explicit Placement(Strategy inner, Strategy outer = Strategy::no_shard);
  /// Any mix. Throws std::invalid_argument, naming role and axis, for an illegal one: on each axis
  /// the optimizer is sharded wherever the gradient is, and the gradient wherever the parameter is;
  /// what is sharded over the outer axis is sharded over the inner one.
  explicit Placement(const Roles& roles);

  const Spreads& spreads(Role role) const;
  /// The shard count of the group's layout: the most parts that any role is cut into.
  int64_t shards(const PerAxis<int64_t>& axis_sizes) const;
  std::string to_text() const;

  friend bool operator==(const Placement&, const Placement&) = default;

 private:
  PerAxis<Spread> parameter_;
  PerAxis<Spread> gradient_;
  PerAxis<Spread> optimizer_;
};

}  // namespace sherd
