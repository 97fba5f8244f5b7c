// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.h"

#include <cmath>
#include <numbers>

namespace sherd {

double lr_of(const OptimSection& optim, int64_t steps, int64_t step) {
  if (step <= optim.warmup) {
    return optim.lr * static_cast<double>(step) / static_cast<double>(optim.warmup);
  }
  if (optim.schedule == "constant") return optim.lr;
  const double done =
      static_cast<double>(step - 1 - optim.warmup) / static_cast<double>(steps - optim.warmup);
  if (optim.schedule == "linear") return optim.lr * (1 - done);
  return optim.lr * (1 + std::cos(std::numbers::pi * done)) / 2;
}

}  // namespace sherd
