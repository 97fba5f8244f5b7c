// SPDX-License-Identifier: Apache-2.0
#include "kernels/cast_copy.h"

#include <cstring>

#include "kernels/cast_types.h"

namespace sherd {
namespace {

template <class Target, class Source>
void cast_copy_one(const CastCopy& one, double divisor) {
  using Math = CastMath<Target, Source>;
  auto* target = static_cast<Target*>(one.target);
  const auto* source = static_cast<const Source*>(one.source);
  const auto by = static_cast<Math>(divisor);
  if (one.add) {
    for (int64_t i = 0; i < one.count; ++i) {
      target[i] = cast_to<Target>(static_cast<Math>(target[i]) + static_cast<Math>(source[i]) / by);
    }
  } else if (divisor != 1 || !std::is_same_v<Target, Source>) {
    for (int64_t i = 0; i < one.count; ++i) {
      target[i] = cast_to<Target>(static_cast<Math>(source[i]) / by);
    }
  } else if (one.target != one.source && one.count > 0) {
    std::memcpy(one.target, one.source, static_cast<size_t>(one.count) * sizeof(Target));
  }
}

}  // namespace

bool is_float16_or_wider(c10::ScalarType dtype) {
  return dtype == c10::kFloat || dtype == c10::kDouble || dtype == c10::kHalf ||
         dtype == c10::kBFloat16;
}

void cast_copy(std::span<const CastCopy> copies, const CastCopyKind& kind, c10::Device device) {
  if (device.is_meta()) return;
  if (device.is_cuda()) return cast_copy_on_cuda(copies, kind, device);
  with_float_type(kind.target, [&](auto target) {
    with_float_type(kind.source, [&](auto source) {
      for (const auto& one : copies) {
        cast_copy_one<decltype(target), decltype(source)>(one, kind.divisor);
      }
    });
  });
}

}  // namespace sherd
