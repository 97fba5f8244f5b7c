// SPDX-License-Identifier: Apache-2.0
#include "sherd/shard/recomputed_calls.h"

#include <c10/util/Exception.h>

#include "shard/region.h"

namespace sherd {

RecomputedCalls::RecomputedCalls() : region_(std::make_shared<Region>()) {}
RecomputedCalls::~RecomputedCalls() = default;

void RecomputedCalls::begin_forward() {
  scopes_.push_back(std::make_unique<RegionScope>(region_, RegionScope::Mode::record));
}

void RecomputedCalls::begin_again() {
  scopes_.push_back(std::make_unique<RegionScope>(region_, RegionScope::Mode::replay));
}

void RecomputedCalls::end() {
  TORCH_CHECK(!scopes_.empty(), "[shard] the end of a recompute that was not begun");
  scopes_.pop_back();
}

}  // namespace sherd
