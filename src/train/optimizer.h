// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sherd/models/language_model.h"
#include "sherd/optim/adamw.h"
#include "sherd/train/configuration.h"

namespace sherd {

AdamWOptions optimizer_of(const Configuration& configuration, const LanguageModel& model);

}  // namespace sherd
