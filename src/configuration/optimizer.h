// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "configuration/configuration.h"
#include "sherd/models/language_model.h"
#include "sherd/optim/adamw.h"

namespace sherd {

AdamWOptions optimizer_of(const Configuration& configuration, const LanguageModel& model);

}  // namespace sherd
