// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <vector>

#include "sherd/export.h"

namespace sherd {

/// Which dtype each role of a parameter has. Absent ones follow the one named.
struct SHERD_API Precision {
  /// What the model computes with, and what is gathered. Default: the parameter's own.
  std::optional<c10::ScalarType> compute{};
  /// The main weight, which the optimizer updates. Default: the parameter's own.
  std::optional<c10::ScalarType> main{};
  /// The main gradient, where gradients accumulate. Default: the main weight's.
  std::optional<c10::ScalarType> gradient{};
  /// What travels when gradients are reduced. Default: the main gradient's.
  std::optional<c10::ScalarType> reduce{};
  /// The forward runs under torch's autocast to this dtype; the parameters keep theirs.
  std::optional<c10::ScalarType> autocast{};
  /// Floating-point tensors among the arguments of a unit are cast to the compute dtype.
  bool cast_inputs = true;

  /// By name: see recipes(), and docs/numerics.md for what each means.
  static Precision recipe(const std::string& name);
  static const std::vector<std::string>& recipes();
};

/// The dtypes of one parameter's roles.
struct RoleDtypes {
  c10::ScalarType model{};  ///< what it is computed with
  c10::ScalarType main{};
  c10::ScalarType gradient{};
  c10::ScalarType reduce{};
  friend bool operator==(const RoleDtypes&, const RoleDtypes&) = default;
};

/// For a parameter of the given dtype. What is not floating point, or not trained, has one dtype.
SHERD_API RoleDtypes resolve(const Precision& precision, c10::ScalarType parameter, bool trainable);

}  // namespace sherd
