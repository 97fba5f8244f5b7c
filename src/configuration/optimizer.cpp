// SPDX-License-Identifier: Apache-2.0
#include "configuration/optimizer.h"

namespace sherd {

AdamWOptions optimizer_of(const Configuration& configuration, const LanguageModel& model) {
  const auto& optim = configuration.optim;
  AdamWOptions options;
  options.lr = optim.lr;
  options.beta1 = optim.betas[0];
  options.beta2 = optim.betas[1];
  options.eps = optim.eps;
  options.weight_decay = optim.weight_decay;
  options.max_norm = optim.max_norm.value_or(0);
  for (const auto& item : model.named_parameters()) {
    if (optim.weight_decay_on == "matrices" && item.value().dim() < 2)
      options.rules.push_back({.match = item.key(), .weight_decay = 0});
  }
  const auto& precision = configuration.precision;
  if (precision.recipe == "fp16" || precision.compute == "fp16") options.scaling = LossScaling{};
  return options;
}

}  // namespace sherd
