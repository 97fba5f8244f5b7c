// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include "sherd/shard/step_graph.h"

namespace sherd {

struct StepGraph::State {};

StepGraph::StepGraph(ModuleRef) {
  TORCH_CHECK_VALUE(
      false,
      "[shard.graph] CUDA graphs need a GPU, and this build of Sherd has no CUDA: put nvcc on PATH "
      "and build again");
}
StepGraph::~StepGraph() = default;
void StepGraph::on_stream(const std::function<void()>&) const {}
void StepGraph::capture(const std::function<void()>&) {}
bool StepGraph::is_captured() const {
  return false;
}
void StepGraph::replay() {}

}  // namespace sherd
