// SPDX-License-Identifier: Apache-2.0
#include "kernels/keyed_fill.h"

#include "kernels/cast_types.h"
#include "kernels/keyed_math.h"

namespace sherd {

void fill_keyed(const KeyedRun& run, c10::Device device) {
  if (device.is_meta()) return;
  if (device.is_cuda()) return fill_keyed_on_cuda(run, device);
  with_float_type(run.dtype, [&](auto type) {
    auto* target = static_cast<decltype(type)*>(run.data);
    for (int64_t i = 0; i < run.count; ++i) {
      target[i] = cast_to<decltype(type)>(keyed_value(run.key, run.begin + i, run.values));
    }
  });
}

}  // namespace sherd
