// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/file_plan.h"
#include "checkpoint/slices.h"
#include "shard/sharded_model.h"
#include "sherd/checkpoint/checkpoint.h"

namespace sherd {

/// A parameter or buffer as this rank stores it.
struct StoredParameter {
  std::string name;
  at::Tensor buffer;                ///< the module's own; undefined: a parameter
  std::vector<TensorSlice> slices;  ///< of the whole parameter
  std::optional<Cut> cut{};         ///< the part of the whole that this rank has; none: the whole
  // This rank's elements, flat: of the main weight and, if an optimizer updates it, of its moments.
  PerSet<at::Tensor> pieces;
  int64_t begin = 0;  ///< index of the first of them in the parameter, or in its part
  // The range of them that this rank writes; replicas share the work.
  int64_t write_begin = 0;
  int64_t write_end = 0;
};

/// Calls `visit` for each run of this rank's elements [begin, end), in order; they are counted as
/// StoredParameter::begin is.
void each_run(
    const StoredParameter& parameter,
    int64_t begin,
    int64_t end,
    const std::function<void(const Run&)>& visit);

/// Returns all parameters of a model with the moments of its optimizer (which may be null), and its
/// buffers, which the first rank writes; in the same order on every rank. For loading, buffers on
/// the meta device are allocated; for saving, they throw. `load_parameters`: without buffers.
enum class Purpose : uint8_t { save, load, load_parameters };
std::vector<StoredParameter> stored_parameters(
    const torch::nn::Module& model,
    const ShardedModel& sharded,
    const AdamW* optimizer,
    const SlicesOf& slices_of,
    Purpose purpose);

/// Returns the files of their checkpoint: a function of names, shapes and dtypes, so the same on
/// every rank.
FilePlan plan_files(const std::vector<StoredParameter>& parameters, const SaveOptions& options);

}  // namespace sherd
