// SPDX-License-Identifier: Apache-2.0
#include "shard/group/group_traits.h"

namespace sherd {

bool GroupTraits::same_as(const GroupTraits& other) const {
  return dtypes == other.dtypes && fp8 == other.fp8 && compute == other.compute &&
         trainable == other.trainable && placement == other.placement &&
         axes.inner == other.axes.inner && axes.outer == other.axes.outer &&
         &mesh.communicator(axes.inner) == &other.mesh.communicator(other.axes.inner) &&
         (axes.outer.empty() ||
          &mesh.communicator(axes.outer) == &other.mesh.communicator(other.axes.outer));
}

PerAxis<int64_t> GroupTraits::axis_sizes() const {
  return {mesh.size(axes.inner), axes.outer.empty() ? 1 : mesh.size(axes.outer)};
}

PerAxis<int64_t> GroupTraits::coordinates() const {
  return {mesh.coordinate(axes.inner), axes.outer.empty() ? 0 : mesh.coordinate(axes.outer)};
}

int64_t GroupTraits::ranks() const {
  const auto sizes = axis_sizes();
  return sizes.inner * sizes.outer;
}

}  // namespace sherd
