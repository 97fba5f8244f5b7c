// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <map>
#include <optional>
#include <string>

#include "configuration/configuration.h"
#include "sherd/models/language_model.h"

namespace sherd {

/// Throws if data.tokenizer has no tokenizer.
void check_tokenizer(const std::string& path);

/// Returns the small files that make a checkpoint a folder for transformers, by name: config.json,
/// the tokenizer's files, generation_config.json, chat templates. Files that training does not
/// change are copied from model.from, or else from `resumed_from`, the checkpoint from which the
/// run continues (empty: none). `dtype`: dtype of the saved weights. Throws if data.tokenizer has
/// no tokenizer.
std::map<std::string, std::string> pretrained_files(
    const Configuration& configuration,
    const LanguageModel& model,
    c10::ScalarType dtype,
    const std::string& resumed_from);

}  // namespace sherd
