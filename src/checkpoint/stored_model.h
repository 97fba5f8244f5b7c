// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/file_plan.h"
#include "shard/sharded_model.h"
#include "sherd/checkpoint/checkpoint.h"

namespace sherd {

/// A parameter as this rank stores it, or a buffer.
struct StoredParameter {
  std::string name;
  at::Tensor buffer;  ///< the module's own; undefined: a parameter
  std::vector<TensorSlice> slices;
  // This rank's elements, flat: of the main weight and, where an optimizer updates it, its moments.
  PerSet<at::Tensor> pieces;
  int64_t begin = 0;  ///< of the first of them, in the parameter
  // Those of them that this rank writes: replicas share the work.
  int64_t write_begin = 0;
  int64_t write_end = 0;
};

/// All parameters of a model, the moments of its optimizer, which may be null, and its buffers, all
/// of which the first rank writes. In the same order on every rank. Throws, naming it, where a
/// parameter is spread over an axis that is not data-parallel. Buffers without memory get some to
/// be loaded into; to be saved, they must have values.
enum class Purpose : uint8_t { save, load };
std::vector<StoredParameter> stored_parameters(
    const torch::nn::Module& model,
    const ShardedModel& sharded,
    const AdamW* optimizer,
    const SlicesOf& slices_of,
    Purpose purpose);

/// The files that a checkpoint of them has: a function of names, shapes and dtypes, so every rank
/// finds the same.
FilePlan plan_files(
    const std::vector<StoredParameter>& parameters, std::optional<c10::ScalarType> export_dtype);

}  // namespace sherd
