// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "sherd/comm/mesh.h"
#include "sherd/plan/placement.h"
#include "sherd/shard/precision.h"

namespace sherd {

/// The properties that all parameters of a group share.
struct GroupTraits {
  RoleDtypes dtypes{};  ///< with fp8 the model dtype is Float8_e4m3fn
  Fp8 fp8 = Fp8::none;
  c10::ScalarType compute{};  ///< dtype of the module's parameters
  bool trainable = true;
  Mesh mesh;
  DataAxes axes;
  Placement placement{Strategy::optim_grads_params};

  /// Returns whether parameters with these traits and with `other` may be in one group.
  bool same_as(const GroupTraits& other) const;
  /// Returns the ranks of each data-parallel axis; 1 where there is no outer axis.
  PerAxis<int64_t> axis_sizes() const;
  /// Returns this rank's coordinate on each data-parallel axis.
  PerAxis<int64_t> coordinates() const;
  /// Returns the number of ranks that the parameters lie on: all along the data-parallel axes.
  int64_t ranks() const;
};

}  // namespace sherd
