// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sherd/models/pretrained.h"

namespace sherd {

/// Returns the config.json of a model of a known family: the entries that follow from its options,
/// and all others of the one that the options were read from.
std::string config_json(const ModelOptions& options);

}  // namespace sherd
