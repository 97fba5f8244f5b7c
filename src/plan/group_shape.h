// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sherd/plan/program.h"

namespace sherd {

/// Slots, and groups in them, begin on multiples of this.
inline int64_t aligned_slot(int64_t bytes) {
  constexpr int64_t kAlignment = 256;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// What follows from a group's placement: which collectives it needs, and how large its parts are.

inline bool is_sharded(const GroupSpec& group, Role role, AxisKind axis) {
  const auto& spreads = group.placement.spreads(role);
  return (axis == AxisKind::outer ? spreads.outer : spreads.inner) == Spread::shard;
}

inline bool gathers_inner(const GroupSpec& group) {
  return is_sharded(group, Role::parameter, AxisKind::inner);
}
inline bool gathers_outer(const GroupSpec& group) {
  return is_sharded(group, Role::parameter, AxisKind::outer);
}
inline bool optimizer_sharded(const GroupSpec& group) {
  return is_sharded(group, Role::optimizer, AxisKind::inner);
}
inline bool optimizer_sharded_outer(const GroupSpec& group) {
  return is_sharded(group, Role::optimizer, AxisKind::outer);
}
inline bool gradient_sharded(const GroupSpec& group) {
  return is_sharded(group, Role::gradient, AxisKind::inner);
}
inline bool gradient_sharded_outer(const GroupSpec& group) {
  return is_sharded(group, Role::gradient, AxisKind::outer);
}
/// The update changes only this rank's part of a weight that rests in larger parts.
inline bool refreshes_inner(const GroupSpec& group) {
  return optimizer_sharded(group) && !gathers_inner(group);
}
inline bool refreshes_outer(const GroupSpec& group) {
  return optimizer_sharded_outer(group) && !gathers_outer(group);
}

/// Elements of this rank's part of the group in a role.
inline int64_t part_elements(const GroupSpec& group, Role role) {
  return group.elements / part_of(group.placement.spreads(role), group.axis_sizes, {0, 0}).count;
}

/// Elements of the part that a role has over the inner axis alone.
inline int64_t inner_part(const GroupSpec& group, Role role) {
  return is_sharded(group, role, AxisKind::inner) ? group.elements / group.axis_sizes.inner
                                                  : group.elements;
}

}  // namespace sherd
