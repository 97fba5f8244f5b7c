// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <vector>

#include "sherd/export.h"

namespace sherd {

/// The recipe for the products of a weight in 8 bits (fp8). The model weight is then encoded in one
/// byte an element (e4m3) with scales that are powers of two, and so are the inputs and gradients
/// of its products. It follows from the main weight alone. docs/numerics.md describes the recipes.
enum class Fp8 : uint8_t {
  none,          ///< no fp8: products in the compute dtype
  rows,          ///< one scale for the weight, one for each token
  rows_wgrad16,  ///< the same, but weight gradients in the compute dtype
  blocks,  ///< one scale for 128 × 128 elements of the weight, one for 128 neighbours of a token
  mx,      ///< one scale of 8 bits for 32 neighbours (MXFP8); emulated in the compute dtype
};

/// The dtypes of a parameter's roles (mixed precision). An absent dtype has the default named with
/// it. Those of a trainable parameter must be floating point of 16 bits or more, else fully_shard()
/// throws.
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
  /// Computes the products of trainable matrices in fp8: of parameters with two dims. Others have
  /// the compute dtype. Sherd's own products alone can read such a weight (linear, norm_linear,
  /// feed_forward, norm_feed_forward); any other operation throws and names it. fully_shard()
  /// throws for dims that are no multiples of 16 (blocks: 128; mx: 32), if compute is not fp32,
  /// bf16 or fp16, and on GPUs before Hopper.
  Fp8 fp8 = Fp8::none;

  /// Returns a usual combination by name; docs/numerics.md describes them. Throws, with the known
  /// names, for an unknown one.
  static Precision recipe(const std::string& name);
  /// Returns the known names: bf16_o1, bf16_o2, bf16_o3, fp16, fp32, fp8, fp8_block, fp8_wgrad16,
  /// mxfp8.
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
