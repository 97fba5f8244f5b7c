// SPDX-License-Identifier: Apache-2.0
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "mirror.h"
#include "sherd/shard/accumulate.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/initialise.h"
#include "sherd/shard/shards.h"
#include "sherd/shard/unused.h"

namespace sherd::python {
namespace {

using Shape = std::vector<int64_t>;
using Runs = std::vector<std::pair<int64_t, int64_t>>;

/// The elements that a shard has of the whole parameter, as ranges (first element, number).
Runs runs_of(const Shard& shard) {
  const auto count = shard.main.numel();
  Runs runs;
  if (!shard.cut) {
    if (count > 0) runs.emplace_back(shard.begin, count);
    return runs;
  }
  each_run(*shard.cut, shard.begin, count, [&](const CutRun& run) {
    runs.emplace_back(run.in_whole, run.length);
  });
  return runs;
}

/// What `values` may return for a parameter: None, ('constant', value), ('uniform', low, high) or
/// ('normal', mean, deviation).
std::optional<InitialValues> values_of(const py::object& given) {
  if (given.is_none()) return std::nullopt;
  const auto parts = py::cast<py::tuple>(given);
  const auto kind = py::cast<std::string>(parts[0]);
  const auto number = [&](size_t index) { return py::cast<double>(parts[index]); };
  if (kind == "constant") return InitialValues::constant(number(1));
  const auto make = choose<InitialValues (*)(double, double)>(
      "the distribution", kind,
      {{"uniform", &InitialValues::uniform}, {"normal", &InitialValues::normal}});
  return make(number(1), number(2));
}

void initialise_model(
    const MirrorPtr& model, uint64_t seed, const py::function& reset, const py::object& values) {
  InitialiseOptions options{.seed = seed};
  if (!values.is_none()) {
    options.values = [&values](const std::string& name, at::IntArrayRef shape) {
      const py::gil_scoped_acquire gil;
      return values_of(values(name, shape.vec()));
    };
  }
  const Mirror::ResetScope scope(reset);
  const OutsidePython outside;
  initialise(*model, options);
}

}  // namespace

void bind_training(py::module_& module) {
  module.def(
      "micro_batches", [](const MirrorPtr& model, int64_t count) { micro_batches(*model, count); },
      Outside());
  module.def(
      "idle_pass", [](const MirrorPtr& model) { idle_pass(*model); }, Outside());
  module.def(
      "finish", [](const MirrorPtr& model) { finish(*model); }, Outside());
  module.def(
      "publish", [](const MirrorPtr& model) { publish(*model); }, Outside());
  module.def(
      "leave_out_unused", [](const MirrorPtr& model) { leave_out_unused(*model); }, Outside());
  module.def(
      "gather", [](const MirrorPtr& unit) { gather(*unit); }, Outside());
  module.def(
      "release", [](const MirrorPtr& unit) { release(*unit); }, Outside());
  module.def(
      "expect_backward",
      [](const MirrorPtr& model, const std::string& next) {
        expect_backward(
            *model, choose<NextBackward>(
                        "the next backward", next,
                        {{"unknown", NextBackward::unknown},
                         {"more", NextBackward::more},
                         {"last", NextBackward::last}}));
      },
      Outside());
  module.def(
      "drop_gradients", [](const MirrorPtr& model) { drop_gradients(*model); }, Outside());
  module.def(
      "count_backwards",
      [](const MirrorPtr& model) {
        const auto count = count_backwards(*model);
        return std::pair(count.done, count.planned);
      },
      Outside());
  module.def(
      "gradient_norm",
      [](const MirrorPtr& model, std::optional<int64_t> tokens) {
        return gradient_norm(*model, {tokens});
      },
      Outside());
  module.def(
      "named_parameters", [](const MirrorPtr& model) { return named_parameters(*model); },
      Outside());
  module.def(
      "full_parameters", [](const MirrorPtr& model) { return full_parameters(*model); }, Outside());
  module.def("edit_parameters", [](const MirrorPtr& unit, const py::function& edit) {
    const OutsidePython outside;
    edit_parameters(*unit, [&edit] {
      const py::gil_scoped_acquire gil;
      edit();
    });
  });
  module.def(
      "initialise", &initialise_model, py::arg("model"), py::arg("seed"), py::arg("reset"),
      py::arg("values"));

  py::class_<Shard>(module, "Shard")
      .def_readonly("name", &Shard::name)
      .def_property_readonly(
          "shape",
          [](const Shard& shard) -> Shape { return shard.cut ? shard.cut->shape : shard.shape; })
      .def_readonly("trainable", &Shard::trainable)
      .def_readonly("has_values", &Shard::has_values)
      .def_readonly("counted", &Shard::counted)
      .def_readonly("main", &Shard::main)
      .def_property_readonly("runs", &runs_of);
  module.def(
      "shards", [](const MirrorPtr& model) { return shards(*model); }, Outside());
}

}  // namespace sherd::python
