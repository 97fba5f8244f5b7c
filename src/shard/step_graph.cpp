// SPDX-License-Identifier: Apache-2.0
#include "sherd/shard/step_graph.h"

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <memory>

#include "shard/runtime/capture.h"
#include "shard/runtime/runtime.h"

namespace sherd {

struct StepGraph::State {
  State(std::shared_ptr<Runtime> of, c10::cuda::CUDAStream on)
      : runtime(std::move(of)), stream(on) {}
  std::shared_ptr<Runtime> runtime;
  c10::cuda::CUDAStream stream;
  std::unique_ptr<at::cuda::CUDAGraph> graph;
  int64_t update_version = 0;  // of the runtime, as the graph has it
  bool takes_tokens = false;
};

StepGraph::StepGraph(ModuleRef model) {
  auto runtime = Runtime::of_model(*model, "StepGraph");
  const auto device = runtime->world().device();
  TORCH_CHECK_VALUE(
      device.is_cuda(), "[shard.graph] a step of '", runtime->root().name(),
      "' can't be captured: it runs on ", device, ", and CUDA graphs need a GPU");
  TORCH_CHECK_VALUE(
      runtime->program().options().memory == MemoryKind::planned, "[shard.graph] a step of '",
      runtime->root().name(),
      "' can't be captured: its memory is eager, and a graph needs fixed addresses; set memory = "
      "planned");
  const c10::cuda::CUDAGuard guard(device);
  state_ = std::make_unique<State>(
      std::move(runtime), c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index()));
}

StepGraph::~StepGraph() = default;

void StepGraph::on_stream(const std::function<void()>& function) const {
  const auto& stream = state_->stream;
  const auto before = c10::cuda::getCurrentCUDAStream(stream.device_index());
  at::cuda::CUDAEvent begin, end;
  begin.record(before);
  begin.block(stream);
  {
    const c10::cuda::CUDAStreamGuard guard(stream);
    function();
  }
  end.record(stream);
  end.block(before);
}

void StepGraph::capture(const std::function<void()>& step) {
  auto& runtime = *state_->runtime;
  check_capturable(runtime);
  runtime.wait_until_idle("StepGraph::capture");
  const c10::cuda::CUDAStreamGuard guard(state_->stream);
  // What steps before took for activations is not needed beside the graph's own.
  c10::cuda::CUDACachingAllocator::emptyCache();
  auto graph = std::make_unique<at::cuda::CUDAGraph>();
  // Threads of NCCL and of our watches ask for events all the time; they must not spoil it.
  graph->capture_begin({0, 0}, cudaStreamCaptureModeRelaxed);
  try {
    begin_capture(runtime);
    step();
    end_capture(runtime);
  } catch (...) {
    stop_capturing(runtime);
    try {
      graph->capture_end();
    } catch (const std::exception&) {
      // What went wrong first is what counts.
    }
    throw;
  }
  graph->capture_end();
  state_->graph = std::move(graph);
  state_->update_version = runtime.parts().graph.update_version;
  state_->takes_tokens = runtime.parts().graph.tokens_captured;
}

bool StepGraph::is_captured() const {
  return state_->graph != nullptr;
}

void StepGraph::replay() {
  TORCH_CHECK(state_->graph, "[shard.graph] replay before capture");
  before_replay(*state_->runtime, state_->update_version, state_->takes_tokens);
  on_stream([&] { state_->graph->replay(); });
  after_replay(*state_->runtime);
}

}  // namespace sherd
