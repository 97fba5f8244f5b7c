// SPDX-License-Identifier: Apache-2.0
#include "models/blocks/rotary.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
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
  for (int64_t i = 0; i < options.head_dim; i += 2) {
    const double power = static_cast<double>(i) / static_cast<double>(options.head_dim);
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
  return result;
}

}  // namespace

void Rotary::prepare(int64_t positions, const at::TensorOptions& like) {
  const auto numbers = at::TensorOptions().dtype(at::kFloat).device(like.device());
  const auto frequency = at::tensor(frequencies(options_)).to(numbers.device());
  const auto half_SD = at::outer(at::arange(positions, numbers), frequency);
  const auto angle_SD = at::cat({half_SD, half_SD}, -1);
  cosine_SD = angle_SD.cos().to(like.dtype());
  sine_SD = angle_SD.sin().to(like.dtype());
}

at::Tensor Rotary::operator()(const at::Tensor& x_BHSD) {
  const int64_t positions = x_BHSD.size(-2);
  const bool known = cosine_SD.defined() && cosine_SD.size(0) == positions &&
                     cosine_SD.device() == x_BHSD.device() &&
                     cosine_SD.scalar_type() == x_BHSD.scalar_type();
  if (!known) prepare(positions, x_BHSD.options());
  const auto halves = x_BHSD.chunk(2, -1);
  return x_BHSD * cosine_SD + at::cat({-halves[1], halves[0]}, -1) * sine_SD;
}

}  // namespace sherd
