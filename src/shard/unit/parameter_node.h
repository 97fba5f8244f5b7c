// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>

#include "shard/unit/unit.h"

namespace sherd {

// Note [Where gradients arrive]
// Each parameter's gradient accumulator is replaced by a node that hands the gradient to the unit.
// The engine calls it once per backward, when every use of the parameter in that backward has
// contributed, also if a function has written the gradient to the buffer itself (as Linear does)
// and returned none. Nodes live from one forward to the next, so that a unit that is called twice
// has one. They are made anew when the compute stream changes, because the engine runs a node on
// the stream where it was made.
struct ParameterNode final : torch::autograd::Node {
  ParameterNode(const at::Tensor& parameter, std::weak_ptr<Unit> unit, size_t group, size_t member)
      : Node(/*sequence_nr=*/UINT64_MAX),
        parameter_(parameter.getIntrusivePtr()),
        unit_(std::move(unit)),
        group_(group),
        member_(member) {
    add_input_metadata(parameter);
  }

  /// Returns the hooks that register_hook put on the parameter, so that they run as an
  /// accumulator's would.
  std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>& tensor_pre_hooks() noexcept
      override {
    static std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>> none;
    auto parameter = parameter_.lock();
    if (!parameter.defined()) return none;
    return torch::autograd::impl::hooks(at::Tensor(std::move(parameter)));
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (gradients.front().defined()) {
      if (const auto unit = unit_.lock()) unit->receive(group_, member_, gradients.front());
    }
    return {};
  }

 private:
  c10::weak_intrusive_ptr<c10::TensorImpl> parameter_;
  std::weak_ptr<Unit> unit_;
  size_t group_;
  size_t member_;
};

}  // namespace sherd
