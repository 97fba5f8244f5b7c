// SPDX-License-Identifier: Apache-2.0
#include "kernels/repeat.h"

#include <cstring>

namespace sherd {

void repeat(void* target, const void* source, int64_t bytes, int64_t count, c10::Device device) {
  if (bytes == 0 || count == 0 || device.is_meta()) return;
  if (device.is_cuda()) return repeat_on_cuda(target, source, bytes, count, device);
  auto* place = static_cast<char*>(target);
  for (int64_t i = 0; i < count; ++i, place += bytes) {
    if (place != source) std::memcpy(place, source, static_cast<size_t>(bytes));
  }
}

}  // namespace sherd
