// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sherd/export.h"
#include "sherd/optim/adamw.h"

// Functions that look at checkpoints without a model. Not collective.
namespace sherd {

/// Returns a description of a checkpoint as text: its state, files and tensors. Throws, naming the
/// file, if it is not a complete checkpoint.
SHERD_API std::string describe_checkpoint(const std::string& folder);

/// A tensor that differs between two checkpoints.
struct TensorDifference {
  std::string tensor;   ///< name and kind: "model.norm.weight (first_moment)"
  std::string what;     ///< the difference in presence, shape or dtype in words; else empty
  double largest = 0;   ///< largest absolute difference of two elements
  double relative = 0;  ///< norm of the difference divided by the norm of the first tensor
};
/// Returns the tensors that differ between two checkpoints: in presence, shape, dtype or values.
/// Weights are compared as main weights, or as model weights where a checkpoint has no main
/// weights. For a tensor that has both, only the dtypes of the model weights are compared. Throws
/// if a checksum of what it reads is wrong; verify_checkpoint() checks every byte.
SHERD_API std::vector<TensorDifference> compare_checkpoints(
    const std::string& one, const std::string& other);

/// Turns a folder of safetensors files into a checkpoint: adds index, checksums and state. The
/// files must have the names of a checkpoint's files (model-*, main-*, first_moment-*,
/// second_moment-*). `numbers` as in SaveOptions; `progress` is the optimizer's state, if there is
/// one. Reads every byte. Throws if there is no model-*.safetensors, if a .safetensors file has
/// another name, and if one is not in the safetensors format; the folder is then no checkpoint.
SHERD_API void seal_checkpoint(
    const std::string& folder,
    const std::map<std::string, int64_t>& numbers,
    const std::optional<AdamW::Progress>& progress);

}  // namespace sherd
