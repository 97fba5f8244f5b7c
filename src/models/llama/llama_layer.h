// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "models/blocks/decoder.h"

namespace sherd {

std::vector<std::shared_ptr<Layer>> llama_layers(const LlamaOptions& options);

}  // namespace sherd
