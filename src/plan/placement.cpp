// SPDX-License-Identifier: Apache-2.0
#include "sherd/plan/placement.h"

#include <array>
#include <stdexcept>
#include <utility>

#include "plan/text.h"

namespace sherd {
namespace {

template <class... Args>
void require(bool condition, const Args&... args) {
  if (!condition) throw std::invalid_argument(text("[plan.placement] ", args...));
}

constexpr int64_t kMostRanks = int64_t{1} << 30;

constexpr std::array<std::pair<Strategy, const char*>, 4> kStrategies{{
    {Strategy::no_shard, "no_shard"},
    {Strategy::optim, "optim"},
    {Strategy::optim_grads, "optim_grads"},
    {Strategy::optim_grads_params, "optim_grads_params"},
}};

Spread spread_of(Role role, Strategy strategy) {
  switch (role) {
    case Role::parameter:
      return strategy >= Strategy::optim_grads_params ? Spread::shard : Spread::replicate;
    case Role::gradient:
      return strategy >= Strategy::optim_grads ? Spread::shard : Spread::replicate;
    case Role::optimizer: return strategy >= Strategy::optim ? Spread::shard : Spread::replicate;
  }
  return Spread::replicate;
}

Placement::Roles roles_of(Strategy inner, Strategy outer) {
  const auto both = [&](Role role) {
    return Spreads{spread_of(role, inner), spread_of(role, outer)};
  };
  return {both(Role::parameter), both(Role::gradient), both(Role::optimizer)};
}

/// On one axis, sharding `first` without `second` is refused.
void check_order(
    const char* axis, Role first, Spread first_spread, Role second, Spread second_spread) {
  require(
      first_spread != Spread::shard || second_spread == Spread::shard, "over the ", axis,
      " axis the ", to_text(first), " is sharded but the ", to_text(second), " is not: shard the ",
      to_text(second), " too, or replicate the ", to_text(first));
}

}  // namespace

std::string to_text(Spread spread) {
  switch (spread) {
    case Spread::replicate: return "replicate";
    case Spread::shard: return "shard";
    case Spread::partial: return "partial";
  }
  return "?";
}

std::string to_text(Role role) {
  switch (role) {
    case Role::parameter: return "parameter";
    case Role::gradient: return "gradient";
    case Role::optimizer: return "optimizer";
  }
  return "?";
}

std::string to_text(Strategy strategy) {
  for (const auto& [value, word] : kStrategies) {
    if (value == strategy) return word;
  }
  return "?";
}

Strategy strategy_from(const std::string& word) {
  for (const auto& [value, known] : kStrategies) {
    if (word == known) return value;
  }
  throw std::invalid_argument(text(
      "[plan.placement] strategy '", word,
      "' is unknown: one of no_shard, optim, optim_grads, "
      "optim_grads_params"));
}

std::string to_text(const Spreads& spreads) {
  return text("inner ", to_text(spreads.inner), ", outer ", to_text(spreads.outer));
}

void check_spreads(const Spreads& spreads) {
  require(
      spreads.outer != Spread::shard || spreads.inner == Spread::shard,
      "a buffer can't be sharded over the outer axis while the spread over the inner one is ",
      to_text(spreads.inner), ": the inner axis is cut first, so shard over it too");
}

Part part_of(
    const Spreads& spreads,
    const PerAxis<int64_t>& axis_sizes,
    const PerAxis<int64_t>& coordinates) {
  check_spreads(spreads);
  require(
      axis_sizes.inner >= 1 && axis_sizes.outer >= 1 && axis_sizes.inner <= kMostRanks &&
          axis_sizes.outer <= kMostRanks,
      "axis sizes are ", axis_sizes.inner, " and ", axis_sizes.outer, "; both must be 1 to 2^30");
  require(
      coordinates.inner >= 0 && coordinates.inner < axis_sizes.inner && coordinates.outer >= 0 &&
          coordinates.outer < axis_sizes.outer,
      "coordinates (", coordinates.inner, ", ", coordinates.outer, ") are outside the axes");
  Part part;
  if (spreads.inner == Spread::shard) part = {coordinates.inner, axis_sizes.inner};
  if (spreads.outer == Spread::shard) {
    part = {part.index * axis_sizes.outer + coordinates.outer, part.count * axis_sizes.outer};
  }
  return part;
}

Placement::Placement(Strategy inner, Strategy outer) : Placement(roles_of(inner, outer)) {}

Placement::Placement(const Roles& roles)
    : parameter_(roles.parameter), gradient_(roles.gradient), optimizer_(roles.optimizer) {
  for (const Role role : {Role::parameter, Role::gradient, Role::optimizer}) {
    const auto& both = spreads(role);
    require(
        both.inner != Spread::partial && both.outer != Spread::partial, "the ",
        sherd::to_text(role), " can't be placed as partial: that is the state of gradients ",
        "before their reduction; use replicate or shard");
    require(
        both.outer != Spread::shard || both.inner == Spread::shard, "the ", sherd::to_text(role),
        " is sharded over the outer axis but not over the inner one: ",
        "the inner axis is cut first, so shard it over the inner one too");
  }
  check_order("inner", Role::parameter, parameter_.inner, Role::gradient, gradient_.inner);
  check_order("inner", Role::gradient, gradient_.inner, Role::optimizer, optimizer_.inner);
  check_order("outer", Role::parameter, parameter_.outer, Role::gradient, gradient_.outer);
  check_order("outer", Role::gradient, gradient_.outer, Role::optimizer, optimizer_.outer);
}

const Spreads& Placement::spreads(Role role) const {
  switch (role) {
    case Role::parameter: return parameter_;
    case Role::gradient: return gradient_;
    case Role::optimizer: break;
  }
  return optimizer_;
}

int64_t Placement::shards(const PerAxis<int64_t>& axis_sizes) const {
  return part_of(optimizer_, axis_sizes, {0, 0}).count;  // no role is cut finer than the optimizer
}

std::string Placement::to_text() const {
  std::string result;
  for (const Role role : {Role::parameter, Role::gradient, Role::optimizer}) {
    result +=
        text(result.empty() ? "" : "; ", sherd::to_text(role), ": ", sherd::to_text(spreads(role)));
  }
  return result;
}

}  // namespace sherd
