// SPDX-License-Identifier: Apache-2.0
#include "kernels/deposit.h"

#include <cstring>

#include "kernels/deposit_types.h"

namespace sherd {
namespace {

template <class Target, class Source>
void deposit_one(const CastCopy& one, double divisor) {
  using Math = DepositMath<Target, Source>;
  auto* target = static_cast<Target*>(one.target);
  const auto* source = static_cast<const Source*>(one.source);
  const auto by = static_cast<Math>(divisor);
  if (one.add) {
    for (int64_t i = 0; i < one.count; ++i) {
      target[i] =
          deposit_cast<Target>(static_cast<Math>(target[i]) + static_cast<Math>(source[i]) / by);
    }
  } else if (divisor != 1 || !std::is_same_v<Target, Source>) {
    for (int64_t i = 0; i < one.count; ++i) {
      target[i] = deposit_cast<Target>(static_cast<Math>(source[i]) / by);
    }
  } else if (one.target != one.source && one.count > 0) {
    std::memcpy(one.target, one.source, static_cast<size_t>(one.count) * sizeof(Target));
  }
}

}  // namespace

bool can_deposit(c10::ScalarType dtype) {
  return dtype == c10::kFloat || dtype == c10::kDouble || dtype == c10::kHalf ||
         dtype == c10::kBFloat16;
}

void deposit(std::span<const CastCopy> deposits, const CastCopyKind& kind, c10::Device device) {
  if (device.is_meta()) return;
  if (device.is_cuda()) return deposit_on_cuda(deposits, kind, device);
  with_deposit_type(kind.target, [&](auto target) {
    with_deposit_type(kind.source, [&](auto source) {
      for (const auto& one : deposits) {
        deposit_one<decltype(target), decltype(source)>(one, kind.divisor);
      }
    });
  });
}

}  // namespace sherd
