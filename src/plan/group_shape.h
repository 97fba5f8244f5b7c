// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sherd/plan/program.h"

namespace sherd {

/// Rounds up to the alignment at which slots, and groups in them, begin.
inline int64_t aligned_slot(int64_t bytes) {
  constexpr int64_t kAlignment = 256;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Consequences of a group's placement: the collectives that it needs, and the sizes of its parts.

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
/// Returns whether a model weight must be refreshed: ranks hold a larger part of it than they
/// update.
inline bool refreshes_inner(const GroupSpec& group) {
  return optimizer_sharded(group) && !gathers_inner(group);
}
inline bool refreshes_outer(const GroupSpec& group) {
  return optimizer_sharded_outer(group) && !gathers_outer(group);
}

/// Returns the number of elements of this rank's part of the group in a role.
inline int64_t part_elements(const GroupSpec& group, Role role) {
  return group.elements / part_of(group.placement.spreads(role), group.axis_sizes, {0, 0}).count;
}

/// Returns the number of elements of a rank's part if the role were sharded over the inner axis
/// alone.
inline int64_t inner_part(const GroupSpec& group, Role role) {
  return is_sharded(group, role, AxisKind::inner) ? group.elements / group.axis_sizes.inner
                                                  : group.elements;
}

/// Returns whether two groups exchange their scales over an axis in one collective.
inline bool exchanges_with(const GroupSpec& one, const GroupSpec& other, AxisKind axis) {
  const bool outer = axis == AxisKind::outer;
  return (outer ? one.axes.outer == other.axes.outer : one.axes.inner == other.axes.inner) &&
         (outer ? one.axis_sizes.outer == other.axis_sizes.outer
                : one.axis_sizes.inner == other.axis_sizes.inner);
}

// ---- model weights ------------------------------------------------------------------------------

/// The places of a group's encodings in its part of a slot: bytes from its begin. Without fp8 there
/// are values alone.
struct PayloadOffsets {
  int64_t scales = 0;
  int64_t second_values = 0;
  int64_t second_scales = 0;
  int64_t bytes = 0;  ///< of all
};
inline PayloadOffsets payload_offsets(const GroupSpec& group, bool two_ways) {
  const auto& encoding = group.encoding;
  const int64_t values = aligned_slot(group.elements * group.bytes.model);
  const int64_t scales = encoding.block == 0
                             ? 0
                             : aligned_slot(group.elements / encoding.block * encoding.scale_bytes);
  PayloadOffsets offsets{.scales = values, .second_values = values + scales};
  offsets.second_scales = offsets.second_values + (two_ways ? values : 0);
  offsets.bytes = offsets.second_scales + (two_ways ? scales : 0);
  return offsets;
}

/// Returns the bytes of a model weight of so many elements, its gathered scales included.
inline int64_t model_bytes(const GroupSpec& group, int64_t elements, bool two_ways) {
  const auto& encoding = group.encoding;
  const int64_t scales = encoding.block == 0 ? 0 : elements / encoding.block * encoding.scale_bytes;
  return (elements * group.bytes.model + scales) * (two_ways ? 2 : 1);
}

}  // namespace sherd
