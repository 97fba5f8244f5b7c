// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/macros/Macros.h>

#include <cmath>

#include "kernels/adamw.h"

namespace sherd {

/// What one step does to every element of a run: all that does not depend on the element.
struct AdamWStep {
  float coefficient = 1;
  float keep = 1;  // factor of the weight: 1 - lr * weight_decay
  float beta1 = 0;
  float beta2 = 0;
  float rest1 = 1;  // 1 - beta1
  float rest2 = 1;
  float size = 0;   // lr / (correction of the first moment)
  float root2 = 1;  // square root of the correction of the second moment
  float eps = 0;
};

inline C10_HOST_DEVICE AdamWStep adamw_step(const AdamWSettings& settings, const double* fields) {
  const double lr = fields[control::lr] * settings.lr_factor;
  const double updates = fields[control::step] - settings.missed;
  const double correction1 = 1 - pow(settings.beta1, updates);
  const double correction2 = 1 - pow(settings.beta2, updates);
  AdamWStep step;
  step.coefficient = static_cast<float>(fields[control::coefficient]);
  step.keep = static_cast<float>(1 - lr * settings.weight_decay);
  step.beta1 = static_cast<float>(settings.beta1);
  step.beta2 = static_cast<float>(settings.beta2);
  step.rest1 = static_cast<float>(1 - settings.beta1);
  step.rest2 = static_cast<float>(1 - settings.beta2);
  step.size = static_cast<float>(lr / correction1);
  step.root2 = static_cast<float>(sqrt(correction2));
  step.eps = static_cast<float>(settings.eps);
  return step;
}

/// a * b + c. Left to itself nvcc fuses one way in one kernel and another in the next; the bits of
/// an element must not depend on where it lies.
inline C10_HOST_DEVICE float multiply_add(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return a * b + c;
#endif
}

inline C10_HOST_DEVICE void adamw_element(
    const AdamWStep& step, float& weight, float gradient, float& first, float& second) {
  const float scaled = gradient * step.coefficient;
  first = multiply_add(step.beta1, first, step.rest1 * scaled);
  second = multiply_add(step.beta2, second, step.rest2 * scaled * scaled);
  const float denominator = sqrtf(second) / step.root2 + step.eps;
  // Decayed and rounded, then moved: as torch's AdamW rounds, whose bias over many equal steps is
  // more than a part in a million.
  weight = multiply_add(-step.size, first / denominator, weight * step.keep);
}

inline C10_HOST_DEVICE void advance(
    double* fields, const double* sums, int64_t count, const ControlRules& rules) {
  double squares = 0;
  for (int64_t i = 0; i < count; ++i) squares += sums[i];
  const double divisor = fields[control::scale] * fields[control::tokens];
  const double norm = sqrt(squares) / divisor;
  const bool finite = norm - norm == 0;
  fields[control::norm] = norm;
  fields[control::skip] = finite ? 0 : 1;
  double coefficient = 1 / divisor;
  if (rules.max_norm > 0 && norm > rules.max_norm) coefficient *= rules.max_norm / norm;
  fields[control::coefficient] = coefficient;
  if (finite) fields[control::step] += 1;
  if (!rules.scaled || fields[control::tokens] == 0) return;
  if (!finite) {
    fields[control::scale] *= rules.backoff;
    fields[control::healthy] = 0;
  } else if (++fields[control::healthy] >= rules.interval) {
    fields[control::scale] *= rules.growth;
    fields[control::healthy] = 0;
  }
}

}  // namespace sherd
