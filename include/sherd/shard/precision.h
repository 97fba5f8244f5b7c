// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <vector>

#include "sherd/export.h"

namespace sherd {

/// The dtypes of a parameter's roles (mixed precision). An absent dtype has the default named with
/// it.
struct SHERD_API Precision {
  /// The model weight, which the model computes with and which is all-gathered. Default: the
  /// parameter's own dtype.
  std::optional<c10::ScalarType> compute{};
  /// The main weight (master weight), which the optimizer updates. Default: the parameter's own
  /// dtype.
  std::optional<c10::ScalarType> main{};
  /// The main gradient, where gradients accumulate. Default: the main weight's dtype.
  std::optional<c10::ScalarType> gradient{};
  /// The gradients while they are sent in a reduction. Default: the main gradient's dtype.
  std::optional<c10::ScalarType> reduce{};
  /// Runs the unit's forward under torch's autocast to this dtype; parameters keep their dtypes.
  /// Default: no change to autocast.
  std::optional<c10::ScalarType> autocast{};
  /// Casts floating-point tensors among the arguments of a unit to `compute`, if that is set.
  bool cast_inputs = true;

  /// Returns a usual combination by name; docs/numerics.md describes them. Throws, with the known
  /// names, for an unknown one.
  static Precision recipe(const std::string& name);
  /// Returns the known names: bf16_o1, bf16_o2, bf16_o3, fp16, fp32.
  static const std::vector<std::string>& recipes();
};

/// The resolved dtypes of one parameter's roles.
struct RoleDtypes {
  c10::ScalarType model{};     ///< dtype of the model weight (Precision::compute)
  c10::ScalarType main{};      ///< dtype of the main weight
  c10::ScalarType gradient{};  ///< dtype of the main gradient
  c10::ScalarType reduce{};    ///< dtype of gradients in a reduction
  friend bool operator==(const RoleDtypes&, const RoleDtypes&) = default;
};

/// Returns the dtypes for a parameter of the given dtype. A parameter that is not floating point
/// keeps its dtype in all roles; one that is not trainable has the compute dtype in all roles.
SHERD_API RoleDtypes resolve(const Precision& precision, c10::ScalarType parameter, bool trainable);

}  // namespace sherd
