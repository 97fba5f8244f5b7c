// SPDX-License-Identifier: Apache-2.0
#include "device/profile_range.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#else
namespace {
uint64_t nvtxRangeStartA(const char*) {
  return 0;
}
void nvtxRangeEnd(uint64_t) {}
void nvtxRangePushA(const char*) {}
void nvtxRangePop() {}
}  // namespace
#endif

namespace sherd {

void ProfileRange::begin(const std::string& name) {
  end();
  number_ = nvtxRangeStartA(name.c_str());
  open_ = true;
}

void ProfileRange::end() noexcept {
  if (open_) nvtxRangeEnd(number_);
  open_ = false;
}

ProfileScope::ProfileScope(const std::string& name) {
  nvtxRangePushA(name.c_str());
}

ProfileScope::~ProfileScope() {
  nvtxRangePop();
}

}  // namespace sherd
