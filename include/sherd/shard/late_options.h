// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "sherd/export.h"
#include "sherd/shard/module_ref.h"
#include "sherd/shard/options.h"

// For code that brings interfaces of other systems to Sherd, in which a unit learns some of its
// options after it was sharded.
namespace sherd {

/// Options of a unit that may change after fully_shard; absent ones stay as they are.
struct LateOptions {
  std::optional<bool> keep_gathered{};
  /// Units that may have been sharded after this one.
  std::optional<std::vector<std::shared_ptr<torch::nn::Module>>> prefetch{};
  std::optional<std::vector<std::shared_ptr<torch::nn::Module>>> backward_prefetch{};
  std::optional<RootOptions> root{};  ///< before the model's first use only
};

/// Changes options of a unit, with the meaning that they have in fully_shard, on all ranks alike:
/// if they differ, the next pass throws. Before the model's first use it costs nothing; later it
/// builds a new program, which blocks until the model's communication on this rank is done, and
/// must come between steps. Throws for a module that is not a unit, for options of a root after the
/// first use, and for lists of units that can't be prefetched (before the first use, that throws).
SHERD_API void change_options(ModuleRef unit, const LateOptions& options);

}  // namespace sherd
