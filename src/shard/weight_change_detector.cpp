// SPDX-License-Identifier: Apache-2.0
#include "shard/weight_change_detector.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>

#include <bit>

namespace sherd {

WeightChangeDetector::WeightChangeDetector(const std::vector<at::Tensor>& weights) {
  for (const auto& weight : weights) {
    if (weight.numel() == 0 || !is_float16_or_wider(weight.scalar_type())) continue;
    device_ = weight.device();
    elements_[weight.scalar_type()].push_back(weight.const_data_ptr());
    ++count_;
  }
  noted_ = at::empty({count_}, at::TensorOptions().dtype(at::kDouble).device(device_));
}

void WeightChangeDetector::look(at::Tensor& buffer) const {
  auto* target = buffer.mutable_data_ptr<double>();
  for (const auto& [dtype, sources] : elements_) {
    std::vector<CastCopy> copies;
    for (const auto* source : sources) copies.push_back({target++, source, 1, false});
    cast_copy(copies, {at::kDouble, dtype, 1}, device_);
  }
}

void WeightChangeDetector::snapshot() {
  look(noted_);
}

bool WeightChangeDetector::changed() const {
  if (device_.is_cpu()) {  // one by one: a step's end allocates nothing
    const auto* noted = noted_.const_data_ptr<double>();
    for (const auto& [dtype, sources] : elements_) {
      for (const auto* source : sources) {
        double now = 0;
        const CastCopy one{&now, source, 1, false};
        cast_copy({&one, 1}, {at::kDouble, dtype, 1}, device_);
        if (std::bit_cast<int64_t>(now) != std::bit_cast<int64_t>(*noted++)) return true;
      }
    }
    return false;
  }
  auto now = at::empty_like(noted_);
  look(now);
  return !at::equal(noted_.view(at::kLong), now.view(at::kLong));  // bits: a NaN is itself
}

}  // namespace sherd
