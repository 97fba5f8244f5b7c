// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>

#include "door.h"

namespace sherd::python {

/// A Python module as Sherd sees it: a torch::nn::Module whose parameters and buffers are the very
/// TensorImpls of the Python module's. Nothing is called through it. It keeps its unit alive, and
/// refers to the Python module weakly, which owns it.
class Mirror final : public torch::nn::Module {
 public:
  Mirror(std::string name, const py::object& module);
  ~Mirror() override;
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  /// Returns the Python module. Throws if it is gone. Needs the GIL.
  py::object module() const;
  /// After the module became a unit: keeps that alive.
  void keep_unit();

  /// While it lives, initialise() resets a module on this thread by calling the function with the
  /// Python module.
  class ResetScope {
   public:
    explicit ResetScope(const py::function& reset);
    ~ResetScope();
    ResetScope(const ResetScope&) = delete;
    ResetScope& operator=(const ResetScope&) = delete;
  };

 private:
  py::weakref module_;
  std::shared_ptr<const void> unit_;
};
using MirrorPtr = std::shared_ptr<Mirror>;

}  // namespace sherd::python
