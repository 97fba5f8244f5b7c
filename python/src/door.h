// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <initializer_list>
#include <string>
#include <utility>

// The extension module sherd._C: Sherd's public headers as Python sees them. The package around it
// (python/sherd) has the interface that users call; names here are for the package alone.
namespace sherd::python {

namespace py = pybind11;

/// A scope for calls into Sherd: other Python threads run meanwhile, as a call may wait for other
/// ranks, and warnings become Python's.
class OutsidePython {
 public:
  OutsidePython() = default;
  ~OutsidePython() noexcept(false) {
    if (std::uncaught_exceptions() > 0) warnings_.set_in_exception();
  }
  OutsidePython(const OutsidePython&) = delete;
  OutsidePython& operator=(const OutsidePython&) = delete;

 private:
  torch::PyWarningHandler warnings_;
  py::gil_scoped_release no_gil_;  // ends first: the handler takes the lock itself
};
using Outside = py::call_guard<OutsidePython>;

/// Returns the value with this name. Throws, with all names, for another.
template <class T>
T choose(
    const char* option,
    const std::string& word,
    std::initializer_list<std::pair<const char*, T>> choices) {
  std::string known;
  for (const auto& [name, value] : choices) {
    if (word == name) return value;
    known += (known.empty() ? "'" : ", '") + std::string(name) + "'";
  }
  throw py::value_error(
      "[sherd] " + std::string(option) + " is '" + word + "'; it must be one of " + known);
}

// What each file of this folder adds to the module.
void bind_errors(py::module_& module);
void bind_ranks(py::module_& module);
void bind_mirror(py::module_& module);
void bind_options(py::module_& module);
void bind_program(py::module_& module);
void bind_training(py::module_& module);
void bind_optimizer(py::module_& module);
void bind_checkpoint(py::module_& module);
void bind_diagnostics(py::module_& module);

}  // namespace sherd::python
