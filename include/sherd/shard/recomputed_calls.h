// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "sherd/export.h"

namespace sherd {

struct Region;
class RegionScope;

/// The calls of units under one recompute (activation checkpointing) that is not Sherd's own, such
/// as torch.utils.checkpoint: sherd::recompute needs none of this. Both runs of the recomputed
/// function must be enclosed, and the second must call the same units as the first.
///
/// begin_… and end() form pairs on one thread, which may be nested with those of other objects.
class SHERD_API RecomputedCalls {
 public:
  RecomputedCalls();
  ~RecomputedCalls();
  RecomputedCalls(const RecomputedCalls&) = delete;
  RecomputedCalls& operator=(const RecomputedCalls&) = delete;

  void begin_forward();  ///< begins the first run: notes the units that this thread calls
  void begin_again();    ///< begins the second run, in the backward
  void end();            ///< ends the run that was begun last

 private:
  std::shared_ptr<Region> region_;
  std::vector<std::unique_ptr<RegionScope>> scopes_;
};

}  // namespace sherd
