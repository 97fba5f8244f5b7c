// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sherd/export.h"
#include "sherd/optim/adamw.h"

// Looking at checkpoints without a model.
namespace sherd {

/// What a checkpoint has, for people: its state, its files, its tensors.
SHERD_API std::string describe_checkpoint(const std::string& folder);

/// A tensor that two checkpoints do not have alike.
struct TensorDifference {
  std::string tensor;   ///< with what it is: "model.norm.weight (first_moment)"
  std::string what;     ///< in words, if it is more than values
  double largest = 0;   ///< of the differences of two elements
  double relative = 0;  ///< norm of the difference over the norm of the first
};
/// Every byte is checked on the way. Main weights are compared where the models have them.
SHERD_API std::vector<TensorDifference> compare_checkpoints(
    const std::string& one, const std::string& other);

/// Makes a checkpoint of a folder that somebody else has filled with safetensors files of the names
/// that a checkpoint has: index, checksums and state are added. Numbers as in SaveOptions.
SHERD_API void seal_checkpoint(
    const std::string& folder,
    const std::map<std::string, int64_t>& numbers,
    const std::optional<AdamW::Progress>& progress);

}  // namespace sherd
