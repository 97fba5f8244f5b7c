// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "models/huggingface/config_file.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/models/hybrid.h"

// Bamba: its layers have a Mamba-2 or attention and then a feed-forward, so each is two of ours.
namespace sherd {

/// Returns whether a Bamba can have these options.
bool is_bamba(const HybridOptions& options);

/// Reads the config.json of a Bamba.
HybridOptions read_bamba(const ConfigFile& config);

/// Returns the entries of config.json that follow from the options of a Bamba.
nlohmann::ordered_json bamba_config(const HybridOptions& options);

/// Returns what a slice under Sherd's names is in the folder of a Bamba.
TensorSlice bamba_slice(const HybridOptions& options, TensorSlice slice);

}  // namespace sherd
