// SPDX-License-Identifier: Apache-2.0
#include "models/blocks/rotary.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <numbers>
#include <vector>

namespace sherd {
namespace {

/// Of each pair of dims, in radians per position.
std::vector<float> frequencies(const RotaryOptions& options) {
  std::vector<float> result;
  const int64_t rotated = options.rotated.value_or(options.head_dim);
  for (int64_t i = 0; i < rotated; i += 2) {
    const double power = static_cast<double>(i) / static_cast<double>(rotated);
    double frequency = 1 / std::pow(options.theta, power);
    if (const auto& scaling = options.scaling) {
      // Long waves are stretched, short ones stay, those between are blended.
      const double wave = 2 * std::numbers::pi / frequency;
      const auto original = static_cast<double>(scaling->original_positions);
      const double low = scaling->low_frequency_factor;
      const double high = scaling->high_frequency_factor;
      if (wave > original / low) {
        frequency /= scaling->factor;
      } else if (wave > original / high) {
        const double smooth = (original / wave - low) / (high - low);
        frequency = (1 - smooth) * frequency / scaling->factor + smooth * frequency;
      }
    }
    result.push_back(static_cast<float>(frequency));
  }
  result.resize(static_cast<size_t>(options.head_dim / 2), 0);
  return result;
}

}  // namespace

const RotaryTables& Rotary::tables(int64_t positions, c10::Device device) {
  const bool known = tables_.cosine.defined() && tables_.cosine.size(0) == positions &&
                     tables_.cosine.device() == device;
  if (known) return tables_;
  const auto numbers = at::TensorOptions().dtype(at::kFloat).device(device);
  const auto frequency = at::tensor(frequencies(options_)).to(device);
  const auto& context = options_.context;
  auto position_S = at::arange(positions * (context ? context->size() : 1), numbers);
  if (context) position_S = context_part(position_S, 0, *context);
  const auto angle_Sd = at::outer(position_S, frequency);
  tables_ = {angle_Sd.cos(), angle_Sd.sin()};
  return tables_;
}

}  // namespace sherd
