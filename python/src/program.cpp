// SPDX-License-Identifier: Apache-2.0
#include "sherd/plan/program.h"

#include <pybind11/stl.h>

#include "mirror.h"
#include "sherd/shard/fully_shard.h"

namespace sherd::python {
namespace {

/// Returns the seconds that the collectives of a step take one after another. A training loop hides
/// part of them behind its computing.
double collective_seconds(const Program& program, const Network& network) {
  auto sections = program.step();
  sections.push_back(&program.update());
  double sum = 0;
  for (const auto* section : sections) {
    for (const auto& one : section->instructions) {
      const auto collective = collective_of(one);
      if (!collective || one.unit == kNone || one.group == kNone) continue;
      const auto& unit = program.units()[static_cast<size_t>(one.unit)];
      const auto& group = unit.groups[static_cast<size_t>(one.group)];
      const bool outer = one.axis == AxisKind::outer;
      const auto& axis = outer ? group.axes.outer : group.axes.inner;
      const auto ranks = outer ? group.axis_sizes.outer : group.axis_sizes.inner;
      sum += seconds(network.link(axis), *collective, one.bytes, ranks);
    }
  }
  return sum;
}

std::string text_of_bytes(const ProgramBytes& bytes) {
  return c10::str(
      "ProgramBytes(model_weights=", bytes.model_weights, ", main_weights=", bytes.main_weights,
      ", main_gradients=", bytes.main_gradients, ", arena=", bytes.arena, ", peak=", bytes.peak(),
      ")");
}

py::tuple numbers_of(const Traffic& traffic) {
  return py::make_tuple(traffic.calls, traffic.bytes);
}

}  // namespace

void bind_program(py::module_& module) {
  py::class_<ProgramBytes>(
      module, "ProgramBytes", "The bytes that a step needs on this rank, by purpose.")
      .def_readonly("model_weights", &ProgramBytes::model_weights)
      .def_readonly("main_weights", &ProgramBytes::main_weights)
      .def_readonly("main_gradients", &ProgramBytes::main_gradients)
      .def_readonly("arena", &ProgramBytes::arena)
      .def_readonly("bound", &ProgramBytes::bound)
      .def_property_readonly("rest", &ProgramBytes::rest)
      .def_property_readonly("peak", &ProgramBytes::peak)
      .def("__repr__", &text_of_bytes);
  py::class_<Program>(module, "Program")
      .def("text", &Program::to_text)
      .def("json", &Program::to_json)
      .def("bytes", &Program::bytes)
      .def("fingerprint", &Program::fingerprint)
      .def(
          "traffic",
          [](const Program& program) {
            const auto traffic = program.traffic();
            py::dict result;
            result["all_gather"] = numbers_of(traffic.all_gather);
            result["reduce_scatter"] = numbers_of(traffic.reduce_scatter);
            result["all_reduce"] = numbers_of(traffic.all_reduce);
            return result;
          })
      .def("collective_seconds", &collective_seconds);
  module.def(
      "program", [](const MirrorPtr& model) -> Program { return program(*model); }, Outside());
}

}  // namespace sherd::python
