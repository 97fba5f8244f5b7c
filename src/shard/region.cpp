// SPDX-License-Identifier: Apache-2.0
#include "shard/region.h"

#include <atomic>

namespace sherd {

int64_t Region::next_number() {
  static std::atomic<int64_t> last{0};
  return ++last;
}

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

int64_t recorded_region() {
  const auto& stack = active_regions();
  if (stack.empty() || stack.front().mode == RegionScope::Mode::replay) return 0;
  return stack.front().region->number;
}

void record_call(const UnitCall& call) {
  auto& stack = active_regions();
  for (auto i = stack.rbegin(); i != stack.rend() && i->mode == RegionScope::Mode::record; ++i) {
    i->region->calls.push_back(call);
  }
}

}  // namespace sherd
