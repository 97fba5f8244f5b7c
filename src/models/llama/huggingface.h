// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sherd/models/llama.h"

namespace sherd {

/// Returns the Hugging Face name of a Llama's parameter.
std::string huggingface_name(const std::string& name);
/// Returns the config.json of a LlamaForCausalLM.
std::string huggingface_config(const LlamaOptions& options);

}  // namespace sherd
