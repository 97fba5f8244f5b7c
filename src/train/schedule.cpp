// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sherd {

double lr_of(const OptimSection& optim, int64_t run_steps, int64_t run_step, int64_t start) {
  const int64_t steps = run_steps - start;
  const int64_t step = run_step - start;
  const int64_t warmup = std::min(optim.warmup, steps);
  if (step <= warmup) {
    return optim.lr * static_cast<double>(step) / static_cast<double>(warmup);
  }
  if (optim.schedule == "constant") return optim.lr;
  const bool decays_late = optim.schedule == "wsd";
  const int64_t usual = decays_late ? std::max<int64_t>(1, steps / 10) : steps;
  const int64_t falling = std::min(optim.decay_steps.value_or(usual), steps - warmup);
  const int64_t fallen = std::max<int64_t>(0, step - 1 - (steps - falling));
  const double done = static_cast<double>(fallen) / static_cast<double>(falling);
  const double left =
      optim.schedule == "cosine" ? (1 + std::cos(std::numbers::pi * done)) / 2 : 1 - done;
  return optim.min_lr + (optim.lr - optim.min_lr) * left;
}

}  // namespace sherd
