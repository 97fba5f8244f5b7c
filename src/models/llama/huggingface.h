// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sherd/models/llama.h"

namespace sherd {

/// The name that a parameter of a Llama has there.
std::string huggingface_name(const std::string& name);
/// The config.json of a LlamaForCausalLM.
std::string huggingface_config(const LlamaOptions& options);

}  // namespace sherd
