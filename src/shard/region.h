// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "sherd/export.h"
#include "sherd/shard/boundary.h"

namespace sherd {

/// The units called under one recompute, in order: recorded in the forward, replayed in the
/// backward.
struct Region {
  std::vector<UnitCall> calls;
  const int64_t number = next_number();  ///< from 1; no other region of this process has it

  static int64_t next_number();
};

/// A scope in which calls of units on this thread belong to the region.
class SHERD_API RegionScope {
 public:
  enum class Mode : uint8_t { record, replay };
  RegionScope(std::shared_ptr<Region> region, Mode mode);
  ~RegionScope();
  RegionScope(const RegionScope&) = delete;
  RegionScope& operator=(const RegionScope&) = delete;
};

/// A region that this thread is in, innermost last.
struct ActiveRegion {
  std::shared_ptr<Region> region;
  RegionScope::Mode mode{};
  size_t next = 0;  // replay: the call that comes next
};
std::vector<ActiveRegion>& active_regions();

/// Returns the innermost region that is being replayed; null outside a recompute in the backward.
ActiveRegion* replayed_region();
/// Returns the number of the outermost region that is being recorded outside any replay; 0 if there
/// is none.
int64_t recorded_region();
/// Adds a call to every region that is being recorded inside the innermost replay.
void record_call(const UnitCall& call);

}  // namespace sherd
