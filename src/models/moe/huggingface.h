// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "models/huggingface/config_file.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/models/moe.h"

// The families of mixtures of experts. Each reading function reads one's config.json.
namespace sherd {

enum class MoeFamily : uint8_t { none, mixtral, qwen3_moe, olmoe };

/// Returns the family whose models have these options.
MoeFamily moe_family(const MoeOptions& options);

MoeOptions read_mixtral(const ConfigFile& config);
MoeOptions read_qwen3_moe(const ConfigFile& config);
MoeOptions read_olmoe(const ConfigFile& config);

/// Returns the entries of config.json that follow from the options, whose family is known.
nlohmann::ordered_json moe_config(const MoeOptions& options);

/// Returns what a slice under Sherd's names is in folders of a known family: each expert has
/// tensors of its own there.
std::vector<TensorSlice> moe_slices(MoeFamily family, const TensorSlice& slice);

}  // namespace sherd
