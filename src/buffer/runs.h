// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sherd/comm/communicator.h"
#include "sherd/plan/layout.h"

namespace sherd {

/// A flat buffer that holds one part of a group.
struct PartBuffer {
  at::Tensor storage;  ///< one dim
  Part part;
};

/// Where part `wanted` lies in a buffer that holds it: one run per segment of the layout. It is the
/// buffer's own part or a part of that one.
std::vector<at::Tensor> runs(const Layout& layout, const PartBuffer& buffer, Part wanted);

/// Pairs of runs, the larger (or target) side first.
std::vector<Transfer> pair_runs(
    const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs);

/// The elements of one parameter that part `wanted` has, where they lie in the buffer: flat.
at::Tensor held_run(const Layout& layout, const PartBuffer& buffer, Part wanted, int64_t parameter);

}  // namespace sherd
