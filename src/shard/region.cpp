// SPDX-License-Identifier: Apache-2.0
#include "shard/region.h"

namespace sherd {

std::vector<ActiveRegion>& active_regions() {
  thread_local std::vector<ActiveRegion> stack;
  return stack;
}

RegionScope::RegionScope(std::shared_ptr<Region> region, Mode mode) {
  active_regions().push_back({std::move(region), mode});
}

RegionScope::~RegionScope() {
  active_regions().pop_back();
}

ActiveRegion* replayed_region() {
  auto& stack = active_regions();
  for (auto i = stack.rbegin(); i != stack.rend(); ++i) {
    if (i->mode == RegionScope::Mode::replay) return &*i;
  }
  return nullptr;
}

std::shared_ptr<const Region> recorded_region() {
  const auto& stack = active_regions();
  return stack.empty() || stack.front().mode == RegionScope::Mode::replay ? nullptr
                                                                          : stack.front().region;
}

void record_call(const UnitCall& call) {
  auto& stack = active_regions();
  for (auto i = stack.rbegin(); i != stack.rend() && i->mode == RegionScope::Mode::record; ++i) {
    i->region->calls.push_back(call);
  }
}

}  // namespace sherd
