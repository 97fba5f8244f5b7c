// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <map>
#include <optional>
#include <string>

#include "configuration/configuration.h"
#include "sherd/models/language_model.h"

namespace sherd {

/// The small files of a checkpoint that make it a folder for transformers, by name: config.json,
/// the tokenizer's files, generation_config.json, chat templates. What training does not change is
/// as it is in model.from, else as in the checkpoint that the run goes on from (empty: none).
/// `dtype`: that of the weights in it. Throws where data.tokenizer has no tokenizer.
std::map<std::string, std::string> pretrained_files(
    const Configuration& configuration,
    const LanguageModel& model,
    c10::ScalarType dtype,
    const std::string& resumed_from);

}  // namespace sherd
