// SPDX-License-Identifier: Apache-2.0
#include "sherd/shard/diagnostics.h"

#include <pybind11/stl.h>

#include "mirror.h"

namespace sherd::python {
namespace {

const char* fault_of(const Finding& finding) {
  switch (finding.fault) {
    case Fault::nan: return "nan";
    case Fault::infinite: return "infinite";
    case Fault::exploding: return "exploding";
    case Fault::none: break;
  }
  return "none";
}

std::map<std::string, int64_t> bytes_of(const MirrorPtr& model) {
  const auto bytes = allocated_bytes(*model);
  return {
      {"model_weights", bytes.model_weights},
      {"main_weights", bytes.main_weights},
      {"main_gradients", bytes.main_gradients},
      {"arena", bytes.arena},
      {"control", bytes.control}};
}

}  // namespace

void bind_diagnostics(py::module_& module) {
  py::class_<Finding>(module, "Finding", "A fault in the gradient of one parameter.")
      .def_readonly("parameter", &Finding::parameter)
      .def_property_readonly("fault", &fault_of)
      .def_readonly("step", &Finding::step)
      .def_readonly("micro_batch", &Finding::micro_batch)
      .def_readonly("rank", &Finding::rank)
      .def("__str__", &Finding::text)
      .def("__repr__", [](const Finding& finding) { return "Finding(" + finding.text() + ")"; });
  py::class_<GroupReport>(module, "GroupReport", "The sizes of one group of parameters of a unit.")
      .def_readonly("unit", &GroupReport::unit)
      .def_readonly("group", &GroupReport::group)
      .def_readonly("parameters", &GroupReport::parameters)
      .def_readonly("elements", &GroupReport::elements)
      .def_readonly("padding", &GroupReport::padding)
      .def_readonly("model_bytes", &GroupReport::model_bytes)
      .def_readonly("main_bytes", &GroupReport::main_bytes)
      .def_readonly("gradient_bytes", &GroupReport::gradient_bytes)
      .def_readonly("gathered_bytes", &GroupReport::gathered_bytes)
      .def_readonly("padding_bytes", &GroupReport::padding_bytes);
  module.def(
      "watch",
      [](const MirrorPtr& model, bool enabled, bool before_reduction, double exploding) {
        watch(*model, {enabled, before_reduction, exploding});
      },
      Outside());
  module.def(
      "findings", [](const MirrorPtr& model) { return findings(*model); }, Outside());
  module.def(
      "norms",
      [](const MirrorPtr& model) {
        std::vector<std::tuple<std::string, double, double>> result;
        for (const auto& one : norms(*model)) {
          result.emplace_back(one.parameter, one.weight, one.gradient);
        }
        return result;
      },
      Outside());
  module.def(
      "groups", [](const MirrorPtr& model) { return groups(*model); }, Outside());
  module.def(
      "groups_text", [](const MirrorPtr& model) { return to_text(groups(*model)); }, Outside());
  module.def("allocated_bytes", &bytes_of, Outside());
}

}  // namespace sherd::python
