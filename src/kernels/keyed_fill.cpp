// SPDX-License-Identifier: Apache-2.0
#include "kernels/keyed_fill.h"

#include "kernels/deposit_types.h"
#include "kernels/keyed_math.h"

namespace sherd {

void fill_keyed(
    void* data,
    c10::ScalarType dtype,
    int64_t begin,
    int64_t count,
    uint64_t key,
    const KeyedValues& values,
    c10::Device device) {
  if (device.is_cuda()) return fill_keyed_on_cuda(data, dtype, begin, count, key, values, device);
  with_deposit_type(dtype, [&](auto type) {
    auto* target = static_cast<decltype(type)*>(data);
    for (int64_t i = 0; i < count; ++i) {
      target[i] = deposit_cast<decltype(type)>(keyed_value(key, begin + i, values));
    }
  });
}

}  // namespace sherd
