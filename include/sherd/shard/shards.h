// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sherd/export.h"
#include "sherd/plan/cut.h"
#include "sherd/shard/module_ref.h"

// For code that brings other module systems or other checkpoint formats to Sherd, such as the
// Python package.
namespace sherd {

/// This rank's elements of one parameter.
struct Shard {
  std::string name;            ///< the parameter's full name
  std::vector<int64_t> shape;  ///< shape of the parameter; of the part if it is cut
  std::optional<Cut> cut;      ///< the part of a whole that the parameter is; none: the whole
  bool trainable = true;       ///< when it was sharded
  bool counted = true;         ///< of the ranks that hold these elements, this is the first
  int64_t begin = 0;           ///< first of the elements, counted in the parameter
  at::Tensor main;             ///< the main weight's elements from there on: flat, maybe empty
  /// False: the parameter was built on the meta device and has been given no values yet. The same
  /// on all ranks.
  bool has_values = true;
};

/// Returns this rank's elements of all parameters of a root, frozen ones included, in the same
/// order on all ranks; views, not copies. Writing to them takes effect with publish(). Not
/// collective, unless it is the first use of the root; does not block.
SHERD_API std::vector<Shard> shards(ModuleRef model);

/// Returns a handle that keeps the unit of a module alive. Without one a unit lives as long as its
/// parameters, which hold it by a hook (autograd's PostAccumulateGradHook) that other code may
/// replace. Throws if the module is not a unit. Any thread.
SHERD_API std::shared_ptr<const void> keep_unit(ModuleRef module);

}  // namespace sherd
